// Package built builds a program for the tests that run it as a process.
package built

import (
	"fmt"
	"os/exec"
	"runtime/debug"
)

// GOGC is for programs whose memory no test measures: they are small, and spend a quarter of their time in collecting what is soon given back. What
// measures sets GOGC= to have what a user has.
const GOGC = "400"

// Program writes the program of pkg to path, with the build tags that the calling test was built with: tests under purego run a program without
// assembly.
func Program(path, pkg string) error {
	args := []string{"build", "-o", path}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "-tags" {
				args = append(args, "-tags", s.Value)
			}
		}
	}
	if out, err := exec.Command("go", append(args, pkg)...).CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
	}
	return nil
}
