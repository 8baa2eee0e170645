# What a generated task's verifier can ask. Builtins only, but for git and tar: it runs thousands of times, and a fork
# costs more than all the rest. A path that is not a plain file (a pipe, a device) answers no instead of blocking.
LC_ALL=C
{ read -r nonce <&4; } 2>/dev/null  # nobody can read it after us, as they could in an environment
cd /app || exit 1
export GIT_ALLOW_PROTOCOL='' GIT_CONFIG_GLOBAL=/dev/null  # a repository can have git fetch, through any command, what it lacks
failures=0

lines_of() { LINES_READ=(); [[ -f $1 && -r $1 ]] && mapfile -t -n 1000 LINES_READ < "$1"; }
is_file() { [[ -f $1 ]]; }
is_folder() { [[ -d $1 ]]; }
is_absent() { [[ ! -e $1 && ! -L $1 ]]; }
is_executable() { [[ -f $1 && -x $1 ]]; }
links_to() { [[ -L $1 && $1 -ef $2 ]]; }
counts_lines() { lines_of "$1" && (( ${#LINES_READ[@]} == $2 )); }
first_line() { lines_of "$1" && [[ ${LINES_READ[0]-} == "$2" ]]; }
last_line() { lines_of "$1" && (( ${#LINES_READ[@]} )) && [[ ${LINES_READ[-1]} == "$2" ]]; }
has_line() { lines_of "$1" && local line && for line in "${LINES_READ[@]}"; do [[ $line == "$2" ]] && return 0; done; return 1; }
lacks_line() { [[ -f $1 ]] && ! has_line "$@"; }
equals() {
  lines_of "$1" || return 1
  shift
  (( ${#LINES_READ[@]} == $# )) || return 1
  local line
  for line in "${LINES_READ[@]}"; do [[ $line == "$1" ]] || return 1; shift; done
}
commit_says() { lines_of .git/logs/HEAD && [[ ${LINES_READ[-1]-} == *$'\t'commit*": $1" ]]; }
commit_holds() { [[ $(git -c safe.directory=/app cat-file -p "HEAD:$1" 2>/dev/null) == "$2" ]]; }
archives() { [[ -f $1 && $(tar -xOf "$1" "$2" 2>/dev/null) == "$3" ]]; }
lists_exactly() {
  [[ -f $1 ]] || return 1
  local members name
  mapfile -t members < <(tar -tf "$1" 2>/dev/null)
  members=("${members[@]#./}")
  shift
  (( ${#members[@]} == $# )) || return 1
  for name; do [[ " ${members[*]} " == *" $name "* ]] || return 1; done
}

say() { printf '{"nonce":"%s",%s}\n' "$nonce" "$1"; }
check() {
  local id=$1 outcome=passed
  shift
  "$@" 2>/dev/null || { outcome=failed; failures=$((failures + 1)); }
  say "\"id\":\"$id\",\"outcome\":\"$outcome\""
}
finish() {
  [[ -d /logs/verifier ]] || mkdir -p /logs/verifier
  printf '%d\n' $((failures == 0)) > /logs/verifier/reward.txt
  say '"finished":true'
}
