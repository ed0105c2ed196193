package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A table between markers stands in a text as
//
//	<!-- benchtable FILE --run PATTERN --columns UNIT,… -->
//	…
//	<!-- /benchtable -->
//
// where FILE is relative to the text's folder.
var (
	opening = regexp.MustCompile(`(?m)^<!-- benchtable (.*) -->$`)
	closing = "<!-- /benchtable -->"
)

// fill returns text with every table between markers made anew from the files below root, and how many there are. It is an error if a
// marker is not closed, or its table cannot be made.
func fill(text, root string) (string, int, error) {
	var out strings.Builder
	count := 0
	for {
		at := opening.FindStringSubmatchIndex(text)
		if at == nil {
			if strings.Contains(text, closing) {
				return "", 0, fmt.Errorf("%s without one that opens it", closing)
			}
			out.WriteString(text)
			return out.String(), count, nil
		}
		count++
		args := strings.Fields(text[at[2]:at[3]])
		head, rest := text[:at[1]], text[at[1]:]
		end := strings.Index(rest, "\n"+closing)
		if next := opening.FindStringIndex(rest); end < 0 || next != nil && next[0] < end {
			return "", 0, fmt.Errorf("marker %d (%s) is not closed by %s", count, strings.Join(args, " "), closing)
		}
		table, err := made(args, root)
		if err != nil {
			return "", 0, fmt.Errorf("marker %d: %w", count, err)
		}
		if strings.Contains(head, closing) {
			return "", 0, fmt.Errorf("%s without one that opens it", closing)
		}
		out.WriteString(head + "\n" + table + closing)
		text = rest[end+1+len(closing):]
	}
}

// made returns the table that the arguments of a marker ask for.
func made(args []string, root string) (string, error) {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || filepath.IsAbs(args[0]) || !filepath.IsLocal(args[0]) {
		return "", fmt.Errorf("want a file below this one's folder first, not %q", strings.Join(args, " "))
	}
	if slices.Contains(args, "--fill") {
		return "", fmt.Errorf("a table is no file to fill")
	}
	cmd := newRoot()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{filepath.Join(root, args[0]), "--format", "markdown"}, args[1:]...))
	if err := cmd.Execute(); err != nil {
		return "", err
	}
	return out.String(), nil
}

// fillFile makes the tables of a file anew.
func fillFile(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	filled, n, err := fill(string(text), filepath.Dir(path))
	if err != nil {
		return n, fileError{fmt.Errorf("%s: %w", path, err)}
	}
	if n == 0 {
		return 0, fileError{fmt.Errorf("%s: no marker <!-- benchtable FILE --> in it", path)}
	}
	if filled == string(text) {
		return n, nil
	}
	return n, os.WriteFile(path, []byte(filled), 0o644)
}
