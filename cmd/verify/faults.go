package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
	checkpointplant "plumbline/verify/plant/checkpoint"
	dumpplant "plumbline/verify/plant/dump"
	projectionplant "plumbline/verify/plant/projection"
	"plumbline/verify/plant/trainer"
	"plumbline/verify/projection"
	"plumbline/verify/report"
	"plumbline/verify/vram"
)

func newFaults() *cobra.Command {
	var (
		seed    uint64
		healthy int
		suites  []string
		all     bool
		ownDump string
		profile string
		leftOut bool
	)
	cmd := &cobra.Command{
		Use:   "faults",
		Short: "plants every fault in healthy data and prints which are caught, and by what",
		Long: `verify faults plants every executable fault in data that a correct program leaves, judges it as a user's files are
judged, and prints the matrix: caught, named first, seen by which checks. Then it counts false alarms on healthy inputs.

Faults of a projection are planted in random bases and gradients, those of a checkpoint in tiny folders of every framework's
layout. Faults of a trainer are planted in an independent trainer in float32 that shares no formula with the reference, under two
profiles (--all: under all of them, in float64, float32 and bfloat16). A fault is named first if the first finding names it, alone
or among at most eight that give the same numbers. --dump FILE says instead which bugs would show in your own dump, by the tensors
that it has.

Exit 1 if a fault of a projection or a checkpoint is missed, if fewer than 98 % of a trainer's are caught or 90 % named first, or if an alarm
is false.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if healthy < 0 {
				return usageError{"--healthy: want a number of inputs, 0 or more"}
			}
			for _, s := range suites {
				if all := []string{"projection", "checkpoint", "vram", "dump"}; !slices.Contains(all, s) {
					return usageError{fmt.Sprintf("--suite %q: want projection, checkpoint, vram or dump%s", s, near(s, all))}
				}
			}
			if profile != "" && ownDump == "" {
				return usageError{"--profile is that of --dump; faults are planted under fixed profiles, or with --all under every one"}
			}
			out := cmd.OutOrStdout()
			w := cli.Screen(cmd)
			cmd.SetOut(w)
			defer func() { w.Close(); cmd.SetOut(out) }()
			if ownDump != "" {
				return visibleIn(cmd, ownDump, profile)
			}
			if leftOut {
				return report.Table(w, []string{"row", "why no plant stands for it"}, leftOutRows())
			}
			bad := false
			for _, name := range []string{"projection", "checkpoint", "vram", "dump"} {
				if !slices.Contains(suites, name) {
					continue
				}
				var wrong bool
				var err error
				if s, ok := sweeps[name]; ok {
					wrong, err = s.run(cmd, seed, healthy)
				} else {
					wrong, err = dumpFaults(cmd, seed, healthy, all)
				}
				if err != nil {
					return err
				}
				bad = bad || wrong
			}
			if bad {
				return cli.Exit{Code: check.ExitFail}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&seed, "seed", 1, "of the random data")
	f.IntVar(&healthy, "healthy", 500, "healthy inputs of each suite to count false alarms on")
	f.StringSliceVar(&suites, "suite", []string{"projection", "checkpoint", "vram", "dump"}, "which faults: projection, checkpoint, vram, dump")
	f.BoolVar(&all, "all", false, "plant a trainer's faults under every profile and in every type (minutes, on all processors)")
	f.StringVar(&ownDump, "dump", "", "a dump of your own: say which bugs its tensors would show")
	f.StringVar(&profile, "profile", "", "with --dump: the convention of the dump")
	f.BoolVar(&leftOut, "left-out", false, "print the rows of the catalogue that no plant stands for, with the argument")
	return cmd
}

// sweep plants the faults of one suite, and judges healthy inputs.
type sweep struct {
	stream uint64 // of the random numbers of the healthy inputs
	plant  func(seed uint64) ([]report.Kill, error)
	alarm  func(r *rand.Rand, i int) (string, error) // judges the i-th healthy input; "" where nothing fails
}

var sweeps = map[string]sweep{
	"projection": {1 << 32,
		func(seed uint64) ([]report.Kill, error) {
			planted, err := projectionplant.PlantAll(seed)
			return kills(planted, false), err
		},
		func(r *rand.Rand, _ int) (string, error) {
			s := projectionplant.RandomScenario(r)
			results, err := projection.Suite.Run(s.Draw(r), check.Selection{})
			return projectionplant.Alarm(s, results), err
		}},
	"checkpoint": {1 << 33,
		func(seed uint64) ([]report.Kill, error) {
			planted, err := checkpointplant.PlantAll(seed)
			return kills(planted, true), err
		},
		func(r *rand.Rand, i int) (string, error) {
			family, in := checkpointplant.Healthy(r, i)
			results, err := checkpoint.Suite.Run(in, check.Selection{})
			return checkpointplant.Alarm(family, results), err
		}},
	"vram": {1 << 34,
		func(seed uint64) ([]report.Kill, error) {
			planted, err := vram.PlantAll(seed)
			return kills(planted, false), err
		},
		func(r *rand.Rand, _ int) (string, error) {
			in := vram.Healthy(r)
			results, err := vram.Suite.Run(in, check.Selection{})
			return vram.Alarm(in, results), err
		}},
}

// kills are the rows of planted faults, each with the name that its own check gives it, or the first finding of the whole report.
func kills[P any](planted []check.Planted[P], first bool) (list []report.Kill) {
	for _, p := range planted {
		k := report.Kill{Check: p.Check, Fault: p.Fault.ID, Title: p.Fault.Title, Caught: p.Caught, By: p.By, Named: p.Named}
		if first {
			k.Named = p.First
		}
		list = append(list, k)
	}
	return list
}

// run prints which faults were caught. wrong says whether one was not, or a healthy input failed.
func (s sweep) run(cmd *cobra.Command, seed uint64, healthy int) (wrong bool, err error) {
	list, err := s.plant(seed)
	if err != nil {
		return false, err
	}
	wrong = slices.ContainsFunc(list, func(k report.Kill) bool { return !k.Caught })
	r := rand.New(rand.NewPCG(seed, s.stream))
	alarms := 0
	for i := range healthy {
		if err := cmd.Context().Err(); err != nil {
			return false, err
		}
		a, err := s.alarm(r, i)
		if err != nil {
			return false, err
		}
		if a != "" {
			alarms++
			fmt.Fprintln(cmd.ErrOrStderr(), "false alarm:", a)
		}
	}
	return wrong || alarms > 0, report.Matrix(cmd.OutOrStdout(), list, healthy, alarms)
}

func leftOutRows() [][]string {
	var rows [][]string
	for _, l := range trainer.LeftOutRows {
		rows = append(rows, []string{l.Row, l.Why})
	}
	return rows
}

// dumpFaults plants the bugs of a trainer.
func dumpFaults(cmd *cobra.Command, seed uint64, healthy int, all bool) (wrong bool, err error) {
	profiles, types := convention.Profiles(), []format.DType{format.F64, format.F32, format.BF16}
	if !all {
		types = []format.DType{format.F32}
		profiles = slices.DeleteFunc(profiles, func(p *convention.Profile) bool {
			return !slices.Contains([]string{"trl-grpo@1.16", "verl-ppo@0.9"}, p.Name)
		})
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // thousands of small batches: a fifth of the time would go to collecting
	show, end := progress(cmd.ErrOrStderr(), false, "faults")
	scores, err := dumpplant.PlantAll(cmd.Context(), profiles, types, seed, func(done, total int) { show("planting", done, total) })
	end()
	if err != nil {
		return false, err
	}
	var rows [][]string
	only := map[string][]string{}
	unseen := 0
	for _, s := range scores {
		if s.Batches == 0 {
			unseen++
			continue
		}
		by := slices.Sorted(maps.Keys(s.By))
		if len(by) == 1 {
			only[by[0]] = append(only[by[0]], s.Plant.ID)
		}
		var other []string
		for id, n := range s.First {
			other = append(other, fmt.Sprintf("%s %d", cmp.Or(id, "(nothing)"), n))
		}
		slices.Sort(other)
		rows = append(rows, []string{s.Plant.ID, strings.Join(s.Plant.Bug().Rows, " "), s.Plant.Bug().Title, fmt.Sprint(s.Batches), fmt.Sprint(s.Caught), fmt.Sprint(s.Named),
			strings.Join(by, " "), strings.Join(other, ", ")})
	}
	w := cmd.OutOrStdout()
	if err := report.Table(w, []string{"fault", "rows", "what was planted", "batches", "caught", "named", "seen by", "else named"}, rows); err != nil {
		return false, err
	}
	var alone [][]string
	for _, c := range dump.Infos() {
		if ids := only[c.Name]; len(ids) > 0 {
			alone = append(alone, []string{c.Name, strings.Join(ids, " ")})
		}
	}
	fmt.Fprintln(w)
	if err := report.Table(w, []string{"check", "the only one that sees"}, alone); err != nil {
		return false, err
	}
	show, end = progress(cmd.ErrOrStderr(), false, "batches")
	alarms, err := dumpplant.Healthy(cmd.Context(), seed, healthy, func(done int) { show("healthy", done, healthy) })
	end()
	if err != nil {
		return false, err
	}
	for _, a := range alarms {
		fmt.Fprintln(cmd.ErrOrStderr(), "false alarm:", a)
	}
	if err := dumpCounts(w, scores, types); err != nil {
		return false, err
	}
	batches, caught, named := dumpplant.Total(scores)
	fmt.Fprintf(w, "\n%d of %d plants show in these profiles and types (--all tries every one). On %d batches: %d caught (%.1f %%), %d named first (%.1f %%). False alarms: %d of %d healthy batches.\n",
		len(scores)-unseen, len(scores), batches, caught, 100*float64(caught)/float64(batches), named, 100*float64(named)/float64(batches), len(alarms), healthy)
	return float64(caught) < 0.98*float64(batches) || float64(named) < 0.9*float64(batches) || len(alarms) > 0, nil
}

// dumpCounts prints what became of the batches by type, and why some do not count.
func dumpCounts(w io.Writer, scores []dumpplant.Score, types []format.DType) error {
	var rows [][]string
	reasons := map[string]int{}
	var never []string
	for _, t := range types {
		var c dumpplant.Count
		for _, s := range scores {
			if of := s.Types[t.String()]; of != nil {
				c = c.Plus(*of)
			}
		}
		rows = append(rows, []string{t.String(), fmt.Sprint(c.Batches), share(c.Caught, c.Batches), share(c.Named, c.Caught), fmt.Sprint(c.LeftOut)})
	}
	fmt.Fprintln(w)
	if err := report.Table(w, []string{"type", "batches", "caught", "named first, of those caught", "left out"}, rows); err != nil {
		return err
	}
	sizes := map[int]int{}
	for _, s := range scores {
		if s.Batches == 0 {
			never = append(never, s.Plant.ID)
		}
		for why, n := range s.Reasons {
			reasons[why] += n
		}
		for _, n := range s.Classes {
			sizes[max(n, 1)]++
		}
	}
	rows = nil
	for _, why := range slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return cmp.Or(reasons[b]-reasons[a], strings.Compare(a, b)) }) {
		rows = append(rows, []string{fmt.Sprint(reasons[why]), why})
	}
	fmt.Fprintln(w)
	if err := report.Table(w, []string{"batches", "left out because"}, rows); err != nil {
		return err
	}
	if len(never) > 0 {
		fmt.Fprintf(w, "\nNot shown, since no profile that was tried can have them: %s.\n", strings.Join(never, ", "))
	}
	var classes []string
	for _, n := range slices.Sorted(maps.Keys(sizes)) {
		classes = append(classes, fmt.Sprintf("%d × %d", sizes[n], n))
	}
	_, err := fmt.Fprintf(w, "\nExplanations that give the same numbers, batches × how many were named together: %s.\n", strings.Join(classes, ", "))
	return err
}

// share is "n (p %)".
func share(n, of int) string {
	return fmt.Sprintf("%d (%.1f %%)", n, 100*float64(n)/float64(max(of, 1)))
}

// visibleIn prints the bugs that would show in a dump.
func visibleIn(cmd *cobra.Command, path, profile string) error {
	run, err := dumpfile.Open(cmd.Context(), []string{path})
	if err != nil {
		return err
	}
	seen, err := dump.Visible(cmd.Context(), run, profile)
	if err != nil {
		return err
	}
	var rows [][]string
	blind := 0
	for _, v := range seen {
		by := strings.Join(v.Checks, " ")
		if by == "" {
			by = "(not with these tensors and numbers)"
			blind++
		}
		rows = append(rows, []string{v.Hypothesis.ID, v.Hypothesis.Title, by})
	}
	if err := report.Table(cmd.OutOrStdout(), []string{"fault", "what it is", "would be seen by"}, rows); err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\n%d of %d bugs would show in this dump.\n", len(rows)-blind, len(rows))
	return err
}
