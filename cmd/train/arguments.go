package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// once refuses a key that is set by a flag and by an override.
func once(flags, overrides []string) error {
	for _, f := range flags {
		key, _, _ := strings.Cut(f, "=")
		for _, o := range overrides {
			if name, _, _ := strings.Cut(strings.TrimPrefix(o, "--"), "="); name == key {
				return usageError{fmt.Sprintf("%s is given twice, by a flag and by %s", key, o)}
			}
		}
	}
	return nil
}

// tellTwice says which value counts of a key that overrides set to two: the last, as of a command line that is made of a common part and
// what differs.
func tellTwice(overrides []string) {
	set := map[string]string{}
	for _, o := range overrides {
		o = strings.TrimPrefix(o, "--")
		key, _, _ := strings.Cut(o, "=")
		if before, ok := set[key]; ok && before != o {
			complain(fmt.Sprintf("%s is given twice: %s counts, and not %s", key, o, before))
		}
		set[key] = o
	}
}

// withOverrides turns arguments --key=value and --key value whose key is no flag of the command into key=value: the programs that
// the trainers are made after take both forms.
func withOverrides(root *cobra.Command, args []string) []string {
	cmd, _, err := root.Find(args)
	if err != nil || cmd == root || !strings.Contains(cmd.Use, "key=value") {
		return args
	}
	isFlag := func(name string) bool {
		return name == "help" || cmd.Flags().Lookup(name) != nil
	}
	var out []string
	for i := 0; i < len(args); i++ {
		name, long := strings.CutPrefix(args[i], "--")
		key, _, assigned := strings.Cut(name, "=")
		switch {
		case args[i] == "--":
			return append(out, args[i:]...)
		case !long || isFlag(key):
			out = append(out, args[i])
			if f := cmd.Flags().Lookup(key); long && !assigned && f != nil && f.NoOptDefVal == "" && i+1 < len(args) {
				i++ // its value, whatever it looks like
				out = append(out, args[i])
			}
		case assigned:
			out = append(out, name)
		case strings.ContainsAny(name, "._") && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--"):
			i++
			out = append(out, name+"="+args[i])
		case strings.ContainsAny(name, "._"):
			out = append(out, name) // a key that lacks its value
		default:
			out = append(out, args[i]) // cobra names the nearest flag
		}
	}
	return out
}
