package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	dumpfile "plumbline/internal/format/dump"
)

// changed reports whether the row is a control that changed the meaning of an option.
func (e *exhibit) changed() bool {
	return e.Control && e.LeftOut == "" && slices.ContainsFunc(e.Names, isOption)
}

func isOption(name string) bool { return strings.Contains(name, ".") }

// declared returns what the dumps of the newer release say of the options that a control changed, as values for verify dump --set.
func (e *exhibit) declared(ctx context.Context, dir string) (set []string, err error) {
	runs, _ := filepath.Glob(filepath.Join(dir, e.ID, "fixed", "*"))
	run, err := dumpfile.Open(ctx, runs[:1])
	if err != nil {
		return nil, err
	}
	for _, o := range run.Common().Options {
		if slices.Contains(e.Names, o.Name) {
			set = append(set, fmt.Sprintf("%s=%v", o.Name, o.Value))
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("%s: its newer release declares none of %s", e.ID, strings.Join(e.Names, ", "))
	}
	return set, nil
}
