"""python -m plumbline is the program verify."""
from ._check import main

main()
