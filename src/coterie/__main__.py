"""`coterie` and `python -m coterie`: the command line, also where Ctrl-C comes before it is loaded."""

import sys

try:
    from coterie.cli import main
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    sys.exit(130)

if __name__ == "__main__":
    main()
