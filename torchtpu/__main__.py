"""`python -m torchtpu`."""

import sys

from torchtpu.cli import main

sys.exit(main())
