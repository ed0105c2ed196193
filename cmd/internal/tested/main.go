// Command tested says what a step of .ci/run has to run beside go test ./..., as arguments of go test: the packages, and of slow the tests, that
// could end in another way there. What it leaves out is compiled from the same files to the same arithmetic, or starts no second goroutine:
// there the step would try again what the default tests have tried.
//
//	tested slow      tests that stand in a file with the tag slow, or use a name of one
//	tested laws      tests of the rooms of formulas that draw random cases
//	tested purego    packages whose tests are compiled from other files of this module under the tag purego
//	tested v3        packages in which the compiler fuses multiplications with additions for GOAMD64=v3
//	tested race      packages that start goroutines, in their tests or themselves, and all tests that run such a package
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	steps := map[string]func(packages) ([]string, error){"slow": slow, "laws": laws, "purego": purego, "v3": v3, "race": race}
	if len(os.Args) != 2 || steps[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: tested slow|laws|purego|v3|race")
		os.Exit(2)
	}
	args, err := run(os.Args[1], steps[os.Args[1]])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tested:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(args, " "))
}

// run is step of this module. A step that would run nothing is an error: go test without packages would pass.
func run(name string, step func(packages) ([]string, error)) ([]string, error) {
	p, err := list("-tags", map[string]string{"slow": "slow"}[name])
	if err != nil {
		return nil, err
	}
	args, err := step(p)
	if err == nil && !slices.ContainsFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") }) {
		err = fmt.Errorf("%s has nothing to run", name)
	}
	return args, err
}
