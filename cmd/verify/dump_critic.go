package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	dumpfile "plumbline/internal/format/dump"
	"plumbline/internal/format/npy"
	"plumbline/verify/check"
	"plumbline/verify/dump"
	"plumbline/verify/report"
)

// criticFolder is where the hooks of verl and OpenRLHF put the critic's steps, which another optimiser takes, beside the folders of the
// actor's runs.
const criticFolder = "critic"

// openCritic opens the critic's newest run where a folder of runs is all that is judged; nil where there is none.
func openCritic(ctx context.Context, args []string, o npy.Options) (*dumpfile.Run, error) {
	if len(args) != 1 {
		return nil, nil
	}
	dir := filepath.Join(args[0], criticFolder)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil
	}
	run, err := dumpfile.OpenWith(ctx, []string{dir}, o)
	if errors.Is(err, dumpfile.ErrNothing) {
		return nil, nil
	}
	return run, err
}

// judgeCritic judges what args have of the critic, too, and adds it to r, the report of the actor: who names the folder of both means both.
func judgeCritic(ctx context.Context, args []string, reader npy.Options, wanted func(int) bool, o dump.Options, configs []string, out *output, r *report.Report) error {
	run, err := openCritic(ctx, args, reader)
	if err != nil && ctx.Err() == nil { // what was found of the actor is said all the same
		r.Err, r.Exit = err.Error(), exitCode(err)
		return nil
	}
	if err != nil || run == nil {
		return err
	}
	if wanted != nil {
		run = run.Only(wanted)
	}
	if len(run.Steps()) == 0 {
		return nil
	}
	declared := out.declared
	var its report.Report
	ctx = context.WithValue(ctx, merging{}, nil) // shards are of the actor's steps; the critic's are judged here, whole
	if err := judgeRun(ctx, run, o, configs, out, &its); err != nil {
		return err
	}
	out.declared = declared
	addCritic(r, &its)
	r.Exit = check.Exit(r.Results, out.policy())
	return nil
}

// addCritic adds the critic's report to the actor's. What the actor's tensors decide and the critic's do not is decided.
func addCritic(r, its *report.Report) {
	const whose = criticFolder + ": "
	decided := map[string]bool{}
	for _, res := range r.Results {
		decided[res.Check] = decided[res.Check] || res.Verdict == check.Pass
	}
	place := make([]int, len(its.Results))
	for i, res := range its.Results {
		if place[i] = -1; res.Verdict == check.Undetermined && decided[res.Check] {
			continue
		}
		place[i] = len(r.Results)
		res.Subject = whose + res.Subject
		r.Results = append(r.Results, res)
	}
	r.Inputs = append(r.Inputs, its.Inputs...)
	for _, line := range its.Lines {
		r.Lines = append(r.Lines, whose+line)
	}
	for _, list := range its.Lists {
		list.Title = whose + list.Title
		r.Lists = append(r.Lists, list)
	}
	dump.AddBrief(r.Brief, its.Brief, r.Results, place, criticFolder)
}
