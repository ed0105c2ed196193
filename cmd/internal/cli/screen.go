package cli

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"plumbline/verify/report"
)

// Terminal reports whether w is one.
func Terminal(w io.Writer) bool {
	f, ok := w.(interface {
		Stat() (os.FileInfo, error)
		Name() string
	})
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull
}

// Columns is the width of the terminal, or what COLUMNS says; 0 where there is neither, and at most 120: longer lines are hard to
// read.
func Columns(w io.Writer) int {
	const most = 120
	if f, ok := w.(interface{ Fd() uintptr }); ok && Terminal(w) {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return min(int(size.Col), most)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 && Terminal(w) {
		return min(n, most)
	}
	return 0
}

// Screen is the output of a command that breaks its lines to the width of a terminal, and leaves them whole elsewhere. Close it.
func Screen(cmd *cobra.Command) *report.Wrapper {
	return report.NewWrapper(cmd.OutOrStdout(), Columns(cmd.OutOrStdout()))
}

// WrapHelp makes the help of a command, and of those below it that have no function of their own for it, fit the terminal: its paragraphs
// are set anew.
func WrapHelp(root *cobra.Command) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		out, long := cmd.OutOrStdout(), cmd.Long
		w := Screen(cmd)
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
