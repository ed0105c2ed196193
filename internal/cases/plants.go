package cases

import (
	"os"
	"strconv"
)

// Planted is how many bugs, or pairs of conventions, there are for one that the slow suite tries: the variable PLANTS, or 1.
func Planted() int { return number("PLANTS", 1) }

// Due reports whether the planted bug, or the pair, of that number is tried.
func Due(i int) bool { return i%Planted() == 0 }

// Checks is how many random cases the slow suite tries where no law of package rapid draws them: the variable CHECKS, or 10,000.
func Checks() int { return number("CHECKS", 10_000) }

func number(name string, otherwise int) int {
	if n, _ := strconv.Atoi(os.Getenv(name)); n > 0 {
		return n
	}
	return otherwise
}
