"""The code that runs in the zygote and as pid 1 of every box: standard library only, relative imports only.

It is started as `python -I -S` without the project on its path, so nothing here may import anything outside this
package. Every module is imported before the zygote changes its root: afterwards no file of the host can be read.
"""
