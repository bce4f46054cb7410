"""Runs a module of this package: `python module_start.py MODULE [ARGUMENT …]`.

`python -m` looks into the working folder first. There a file `signal.py`, or a folder `manyhands`,
would take the place of the standard library's module, or of this package. So modules that a
worker needs before it reads the user's objects are never looked for there.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file
    sys.path.insert(0, __file__.rpartition("/manyhands/launch/")[0])
    __import__("manyhands")  # the one that this file belongs to
    del sys.path[0], sys.argv[0]
    import runpy

    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
