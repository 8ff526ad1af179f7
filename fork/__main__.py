# SPDX-License-Identifier: Apache-2.0
import gc

from fork.cli import main

if __name__ == "__main__":
    # LibCST's trees are large and free of cycles; to look for some takes a third of a run's time and frees nothing.
    gc.disable()
    raise SystemExit(main())
