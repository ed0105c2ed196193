package main

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// columns is the width of the terminal, or what COLUMNS says; 0 where there is neither, and at most 120: longer lines are hard to
// read.
func columns(w io.Writer) int {
	const most = 120
	if f, ok := w.(*os.File); ok && terminal(w) {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return min(int(size.Col), most)
		}
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 && terminal(w) {
		return min(n, most)
	}
	return 0
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
