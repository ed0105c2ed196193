package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"plumbline/verify/report"
)

// columns is the width of the terminal, or what COLUMNS says; 0 where there is neither, and at most 120: longer lines are hard to
// read.
func columns(w io.Writer) int {
	const most = 120
	if f, ok := w.(interface{ Fd() uintptr }); ok && terminal(w) {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return min(int(size.Col), most)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 && terminal(w) {
		return min(n, most)
	}
	return 0
}

// screenOf is the output of a command that breaks its lines to the width of a terminal, and leaves them whole elsewhere. Close it.
func screenOf(cmd *cobra.Command) *report.Wrapper {
	return report.NewWrapper(cmd.OutOrStdout(), columns(cmd.OutOrStdout()))
}

// wrapHelp makes the help of every command fit the terminal: its paragraphs are set anew.
func wrapHelp(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out, long := cmd.OutOrStdout(), cmd.Long
		w := screenOf(cmd)
		if w.Columns() > 0 {
			cmd.Long = reflowed(long)
		}
		cmd.SetOut(w)
		help(cmd, args)
		w.Close()
		cmd.SetOut(out)
		cmd.Long = long
	})
}

// reflowed joins the lines of every paragraph of prose; lists and examples, which are indented, stay.
func reflowed(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		lines := strings.Split(p, "\n")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, " ") }) {
			paragraphs[i] = strings.Join(lines, " ")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// colorMode is the value of --color: auto colours a terminal.
type colorMode string

func (c *colorMode) String() string { return string(*c) }
func (c *colorMode) Type() string   { return "string" }
func (c *colorMode) Set(s string) error {
	if !slices.Contains(colorModes, s) {
		return fmt.Errorf("want one of %s", strings.Join(colorModes, ", "))
	}
	*c = colorMode(s)
	return nil
}

var colorModes = []string{"auto", "always", "never"}

// colored follows --color, then NO_COLOR, FORCE_COLOR and CLICOLOR_FORCE, else colours a terminal.
func colored(cmd *cobra.Command) bool {
	if f := cmd.Flag("color"); f != nil && f.Value.String() != "auto" {
		return f.Value.String() == "always"
	}
	if os.Getenv("NO_COLOR") != "" {
		return false
	}
	for _, name := range []string{"FORCE_COLOR", "CLICOLOR_FORCE"} {
		if v := os.Getenv(name); v != "" && v != "0" {
			return true
		}
	}
	return terminal(cmd.OutOrStdout()) && os.Getenv("TERM") != "dumb"
}

// utf8Locale reports whether the terminal takes more than ASCII: the first of LC_ALL, LC_CTYPE and LANG that is set says so.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(os.Getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}
