package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/dump"
)

// museumRun judges what one run of a release left: the folders that its command.json names, as verify checkpoint does, or else a dump, with
// set as verify dump --set.
func museumRun(ctx context.Context, path string, set []string) ([]check.Result, int, error) {
	text, err := os.ReadFile(filepath.Join(path, "command.json"))
	if errors.Is(err, fs.ErrNotExist) {
		run, err := dumpfile.Open(ctx, []string{path})
		if err != nil {
			return nil, 0, err
		}
		found, err := dump.Judge(ctx, run, dump.Options{Set: set})
		if err != nil {
			return nil, 0, err
		}
		return found.Results, check.Exit(found.Results, check.Policy{Declared: found.Declared}), nil
	} else if err != nil {
		return nil, 0, err
	}
	paths, err := museumPaths(path, text)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", filepath.Join(path, "command.json"), err)
	}
	in, err := checkpoint.Load(ctx, paths)
	if err != nil {
		return nil, 0, err
	}
	defer in.Close()
	results, err := checkpoint.Suite.Run(in, check.Selection{})
	return results, check.Exit(results, check.Policy{}), err
}

// museumPaths reads command.json: the folders that verify checkpoint is called with, as paths from the folder of the run.
func museumPaths(run string, text []byte) (checkpoint.Paths, error) {
	var p checkpoint.Paths
	if err := strictly(text, &p); err != nil {
		return p, err
	}
	for _, s := range []*string{&p.Dir, &p.Base, &p.Init, &p.Merged, &p.Against} {
		if *s != "" {
			*s = filepath.Join(run, filepath.FromSlash(*s))
		}
	}
	if p.Dir == "" {
		return p, errors.New("dir is missing")
	}
	return p, nil
}
