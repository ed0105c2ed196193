package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Kinds of differences, the worst first.
const (
	exit    = "exit"
	verdict = "verdict"
	number  = "number"
	text    = "text"
)

// A difference is one thing that two programs say in different ways.
type difference struct{ kind, where, old, new string }

// differences compares two answers. Times, versions and the names of the programs are no part of them.
func differences(a, b answer, asJSON bool) []difference {
	var found []difference
	if a.exit != b.exit {
		found = append(found, difference{exit, "exit code", fmt.Sprint(a.exit), fmt.Sprint(b.exit)})
	}
	var x, y map[string]any
	if asJSON && json.Unmarshal(a.stdout, &x) == nil && json.Unmarshal(b.stdout, &y) == nil {
		l, r := leaves(x), leaves(y)
		for _, where := range slices.Sorted(maps.Keys(union(l, r))) {
			if old, now := l[where], r[where]; old != now {
				found = append(found, difference{kindOf(where, old, now), where, shown(old), shown(now)})
			}
		}
	} else {
		found = append(found, lines("stdout", a.stdout, b.stdout)...)
	}
	return append(found, lines("stderr", a.stderr, b.stderr)...)
}

// leaves flattens a report: results are found by check and subject, all else by its place.
func leaves(report map[string]any) map[string]any {
	flat := map[string]any{}
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, w := range v {
				walk(where+"."+k, w)
			}
		case []any:
			seen := map[string]int{}
			for i, w := range v {
				key := fmt.Sprint(i)
				if m, ok := w.(map[string]any); ok && m["check"] != nil {
					key = fmt.Sprint(m["check"], " ", m["subject"])
					if seen[key]++; seen[key] > 1 {
						key = fmt.Sprint(key, " #", seen[key])
					}
				} else if ok && m["fault"] != nil {
					key = fmt.Sprint(m["fault"], " ", i)
				}
				walk(where+"["+key+"]", w)
			}
		default:
			flat[where] = v
		}
	}
	for k, v := range report {
		if k != "tool" && k != "run" { // version, time and command line of the program
			walk(k, v)
		}
	}
	return flat
}

func union(a, b map[string]any) map[string]any {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// kindOf tells what a leaf is. A result, or a number, that only one program has is a difference of verdicts, or of numbers.
func kindOf(where string, old, now any) string {
	field := where[strings.LastIndexByte(where, '.')+1:]
	_, wasNumber := old.(float64)
	_, isNumber := now.(float64)
	switch {
	case strings.HasSuffix(where, ".verdict") || strings.HasPrefix(where, "counts.") || strings.Contains(where, ".class["):
		return verdict
	case field == "exit":
		return exit
	case wasNumber || isNumber:
		return number
	}
	return text
}

func shown(v any) string {
	if v == nil {
		return "(none)"
	}
	return strings.ReplaceAll(fmt.Sprint(v), "\n", "\\n")
}

// lines lists the lines that only one of two texts has, in pairs.
func lines(where string, a, b []byte) []difference {
	if bytes.Equal(a, b) {
		return nil
	}
	only := func(x, y []byte) []string {
		there := map[string]int{}
		for l := range strings.Lines(string(y)) {
			there[l]++
		}
		var rest []string
		for l := range strings.Lines(string(x)) {
			if there[l]--; there[l] < 0 {
				rest = append(rest, strings.TrimRight(l, "\n"))
			}
		}
		return rest
	}
	l, r := only(a, b), only(b, a)
	var found []difference
	for i := range max(len(l), len(r)) {
		d := difference{text, where, "(none)", "(none)"}
		if i < len(l) {
			d.old = l[i]
		}
		if i < len(r) {
			d.new = r[i]
		}
		found = append(found, d)
	}
	if len(found) == 0 {
		found = append(found, difference{text, where, "the same lines", "in another order"})
	}
	return found
}
