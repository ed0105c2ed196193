package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"plumbline/accel"
	"plumbline/accel/cpu"
	"plumbline/accel/cuda"
	"plumbline/cmd/internal/cli"
	"plumbline/verify/check"
	"plumbline/verify/op"
	"plumbline/verify/report"
)

func newOps() *cobra.Command {
	var (
		out                output
		variants, required []string
		run, one           string
		recordTo, replayOf string
		cases              int
		seed               uint64
		faults             bool
		speed              bool
		part               string
	)
	cmd := &cobra.Command{
		Use:   "ops [--variant NAME] [--require NAME] [--run RE] [--cases N] [--record FILE | --replay FILE]",
		Short: "holds every variant of every accelerated op against its specification",
		Long: `verify ops runs every variant of every accelerated op that this machine has (generic is portable Go) on drawn cases: sizes at the
edges of vectors and blocks, values half plain and half extreme, operands against pages that cannot be touched, outputs that start
as NaN. A case passes if every element is within its derived bound of the float64 reference, and, where the specification fixes the
order of a sum, equal to it bit by bit.

A variant that the machine lacks is printed as not run; --require NAME, or VERIFY_REQUIRE=NAME,NAME, makes that a failure. "of probe"
is the speed of one size per second of CPU time, against a loop of the same instructions on registers alone.
--faults runs the wrong implementations of each specification instead: exit 1 if one is not caught.

The CUDA kernels have two variants more, which --variant asks for. sim interprets their PTX, in four schedules that must give the same
bits, with every access checked: no GPU is needed, and for each kernel the table has its cases, its largest err/bound, and the warp
instructions, sectors of 32 bytes and bank conflicts of all cases in the first schedule. cuda runs them on a GPU between sentinels;
without one the exit code is 3. --record writes what a device gave into a certificate; --replay judges one on any machine: reference
and bound are computed anew for every case whose outputs it holds, and hashes are compared with the simulator's where the
specification promises all bits. Kernels that have changed since make their cases void (exit 6).`,
		Example: `  verify ops
  verify ops --variant sim --run 'Attention|Gemm'
  verify ops --variant cuda --record h200.certificate
  verify ops --replay h200.certificate
  verify ops --run Gemm --variant avx2 --cases 10000
  verify ops --require avx512vnni
  verify ops --run '^i8.Gemm$' --variant avx2 --case saturate/5x17x65537x2/12345`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			mine, to, err := out.forShard(part)
			if err != nil {
				return err
			}
			if part != "" && (faults || recordTo != "" || replayOf != "") {
				return usageError{"--shard judges ops here: no --faults, --record or --replay goes with it"}
			}
			if err := out.validate(nil); err != nil {
				return err
			}
			if cases < 1 {
				return usageError{"--cases: want a number of cases, 1 or more"}
			}
			pattern, err := regexp.Compile(run)
			if err != nil {
				return usageError{fmt.Sprintf("--run %q: %v", run, err)}
			}
			for _, v := range append(slices.Clone(variants), required...) {
				if known := append(slices.Clone(accel.Levels), deviceVariants...); !slices.Contains(known, v) {
					return usageError{fmt.Sprintf("no variant is named %q; there are %s%s", v, strings.Join(known, ", "), near(v, known))}
				}
			}
			j := opsJob{seed: seed, cases: cases, speed: speed, variants: variants, pattern: pattern}
			var devices []string
			for _, v := range deviceVariants {
				if slices.Contains(variants, v) {
					devices = append(devices, v)
				}
			}
			if err := writable("--record", recordTo); err != nil {
				return err
			}
			switch {
			case recordTo != "" && replayOf != "":
				return usageError{"--record and --replay: one of them"}
			case recordTo != "" && len(devices) != 1:
				return usageError{"--record: want one device, --variant cuda or --variant sim"}
			case replayOf != "" && (len(variants) > 0 || one != "" || faults):
				return usageError{"--replay judges what its file holds: no --variant, --case or --faults goes with it"}
			}
			if one != "" {
				c, err := op.ParseCase(one)
				if err != nil {
					return usageError{"--case: " + err.Error()}
				}
				j.one = &c
			}
			var names []string
			matched := 0
			for _, k := range kernels() {
				names = append(names, k.Name)
				if pattern.MatchString(k.Name) {
					j.kernels = append(j.kernels, k)
					matched++
				}
			}
			for _, o := range op.OnDevice((*cuda.Host)(nil), 0) {
				if !slices.Contains(names, o.Name) {
					names = append(names, o.Name)
					if pattern.MatchString(o.Name) {
						matched++
						j.planted = append(j.planted, o)
					}
				}
			}
			if matched == 0 {
				return usageError{fmt.Sprintf("--run %q matches none of %s%s", run, strings.Join(names, ", "), near(run, names))}
			}
			if faults {
				return opFaults(cmd, j)
			}
			for _, name := range append(strings.Split(os.Getenv(op.RequireEnv), ","), required...) {
				if name != "" {
					j.required = append(j.required, name)
				}
			}
			r := &report.Report{Command: "ops", Repeat: repeatCommand(cmd)}
			if replayOf != "" {
				rows, head, err := j.replay(cmd, replayOf, r)
				if err != nil {
					return err
				}
				r.Exit = check.Exit(r.Results, check.Policy{})
				if out.format != "human" || out.file != "" {
					return out.emit(cmd, r, started)
				}
				fmt.Fprintln(cmd.OutOrStdout(), head)
				return tableAndExit(cmd, r, []string{"op", "verdict", "cases", "elements", "err/bound", "bits of sim", "remark"}, rows)
			}
			if part != "" {
				j.shards.part = &mine
				return writePartial(cmd, nil, mine, opInputs(j.required), to, func(put func(any) error) error {
					j.shards.put = put
					_, _, err := j.judgeAll(cmd, devices, "", r)
					return err
				})
			}
			if err := j.takeOpShards(cmd); err != nil {
				return err
			}
			rows, perKernel, err := j.judgeAll(cmd, devices, recordTo, r)
			if err != nil {
				return err
			}
			rows = append(rows, j.demanded(r)...)
			r.Exit = check.Exit(r.Results, check.Policy{})
			if out.format != "human" || out.file != "" {
				return out.emit(cmd, r, started)
			}
			if len(perKernel) > 0 {
				if err := report.Table(cmd.OutOrStdout(), []string{"op", "kernel", "cases", "err/bound", "instructions", "sectors", "bank conflicts"}, perKernel); err != nil {
					return err
				}
			}
			return tableAndExit(cmd, r, []string{"op", "variant", "verdict", "cases", "elements", "err/bound", "of probe", "remark"}, rows)
		},
	}
	f := cmd.Flags()
	listVar(f, &variants, "variant", "only these variants: "+strings.Join(append(slices.Clone(accel.Levels), deviceVariants...), ", "))
	listVar(f, &required, "require", "variants that must run: exit 1 if the machine lacks one")
	f.StringVar(&run, "run", "", "only ops whose name matches this regular expression")
	f.IntVar(&cases, "cases", 60, "cases of every op and variant (sim: 12)")
	f.StringVar(&recordTo, "record", "", "write a certificate of what the device gave to this file")
	f.StringVar(&replayOf, "replay", "", "judge a certificate that a device wrote")
	f.StringVar(&one, "case", "", "run this one case, as a failure names it")
	f.Uint64Var(&seed, "seed", 1, "of the cases")
	f.BoolVar(&faults, "faults", false, "plant the faults of every specification and print which are caught")
	f.BoolVar(&speed, "speed", true, "measure the share of the probe")
	f.StringVar(&part, "shard", "", "I/N: judge part I of N of the ops and variants, 0 ≤ I < N, and write a partial for verify merge; I may be auto, as in verify dump")
	f.StringVar(&out.format, "format", "human", "form of the report: "+strings.Join(report.Formats, ", "))
	f.StringVarP(&out.file, "output", "o", "", "write the report to this file, whole or not at all, in place of stdout (-)")
	out.failOn = "fail"
	return cmd
}

// opsJob is what verify ops was asked to run.
type opsJob struct {
	kernels            []kernel
	variants, required []string
	seed               uint64
	cases              int
	one                *op.Case
	speed              bool
	pattern            *regexp.Regexp
	planted            []op.Op  // ops of the devices alone, for their faults
	ran                []string // devices that ran
	absent             string   // why a device did not
	shards             opShards
}

// judgeAll judges the ops on the devices that were asked for, then the variants of this machine.
func (j *opsJob) judgeAll(cmd *cobra.Command, devices []string, recordTo string, r *report.Report) (rows, perKernel [][]string, err error) {
	for _, v := range devices {
		d, err := j.open(v)
		if err != nil {
			if slices.Contains(j.required, v) && j.shards.part == nil {
				j.absent = err.Error() // a failure of the report
				continue
			}
			return nil, nil, fmt.Errorf("--variant %s: %w", v, err)
		}
		cases := j.cases
		if v == onSimulator && !cmd.Flags().Changed("cases") {
			j.cases = simulatedCases
		}
		more, kernels, recorded, err := j.judgeDevice(cmd, d, r)
		j.cases = cases
		if err = errors.Join(err, d.close()); err != nil {
			return nil, nil, err
		}
		j.ran = append(j.ran, v)
		rows, perKernel = append(rows, more...), append(perKernel, kernels...)
		if recordTo != "" {
			if err := record(recordTo, d, recorded); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(devices) == 0 || len(devices) < len(j.variants) {
		more, err := j.run(cmd, r)
		if err != nil {
			return nil, nil, err
		}
		rows = append(rows, more...)
	}
	return rows, perKernel, nil
}

// open opens a device. Where shards have judged its ops only their names are needed.
func (j *opsJob) open(variant string) (*onDevice, error) {
	if j.shards.notes != nil {
		return &onDevice{variant: variant, ops: op.OnDevice((*cuda.Host)(nil), 0), close: func() error { return nil }}, nil
	}
	return openDevice(variant)
}

// run adds a result for every op and variant to r and returns their rows of the table.
func (j *opsJob) run(cmd *cobra.Command, r *report.Report) (rows [][]string, err error) {
	for _, k := range j.kernels {
		eachVariant(k.Name, func(v accel.Variant) {
			if len(j.variants) > 0 && !slices.Contains(j.variants, v.Name) || err != nil {
				return
			}
			if err = cmd.Context().Err(); err != nil {
				return
			}
			u, here, failed := j.shards.unit(k.Name, v.Name, func() (opUnit, error) { return j.variant(k, v), nil })
			if err = failed; err != nil || !here {
				return
			}
			if u.Ran {
				j.ran = append(j.ran, v.Name)
			}
			r.Results, rows = append(r.Results, u.Result), append(rows, u.Rows...)
		})
	}
	for _, level := range accel.Levels { // what was planned and is not there is said, too
		if unwritten(level) && (len(j.variants) == 0 || slices.Contains(j.variants, level)) {
			r.Results = append(r.Results, check.Result{Check: "ops/variants", Subject: level, Verdict: check.Skip, Reason: noVariant})
			rows = append(rows, []string{"every op", level, "not run", "", "", "", "", noVariant})
		}
	}
	return rows, err
}

// variant judges an op under the variant in use, or says why it does not run.
func (j *opsJob) variant(k kernel, v accel.Variant) opUnit {
	row := []string{k.Name, v.Name, "not run", "", "", "", "", v.Missing}
	result := check.Result{Check: "ops/" + k.Name, Subject: v.Name, Verdict: check.Skip, Reason: v.Missing}
	if v.Broken {
		result.Verdict, row[2] = check.Fail, check.Fail.String()
	}
	if v.Missing == "" {
		done := j.judge(k, v.Name, &result)
		row = []string{k.Name, v.Name, result.Verdict.String(), fmt.Sprint(done.Cases), fmt.Sprint(done.Compared()), fmt.Sprintf("%.2g", done.Tally.Worst.Ratio), "", result.Reason}
		if j.speed && result.Verdict == check.Pass {
			row[6] = k.share()
		}
		if v.Untried && row[7] == "" {
			row[7] = "not in use: no machine of the authors has it"
		}
	}
	return opUnit{Result: result, Rows: [][]string{row}, Ran: v.Missing == ""}
}

const noVariant = "no op has such a variant in this build"

// unwritten reports whether no op has a variant of that level.
func unwritten(level string) bool {
	return !slices.ContainsFunc(accel.Ops(), func(name string) bool {
		return slices.ContainsFunc(accel.Variants(name), func(v accel.Variant) bool { return v.Name == level })
	})
}

// demanded adds a failure for every variant that must run and did not.
func (j *opsJob) demanded(r *report.Report) (rows [][]string) {
	for _, name := range j.required {
		if slices.Contains(j.ran, name) {
			continue
		}
		reason := noVariant
		if !unwritten(name) {
			reason = "none of the ops and variants that were run"
		}
		if slices.Contains(deviceVariants, name) {
			reason = "--variant " + name + " was not asked for"
			if name == onGPU {
				if _, err := openDevice(name); err != nil {
					reason = err.Error()
				}
			}
			if j.absent != "" {
				reason = j.absent
			}
		}
		for _, v := range r.Results {
			if v.Subject == name && v.Reason != "" {
				reason = v.Reason
			}
		}
		r.Results = append(r.Results, check.Result{Check: "ops/require", Subject: name, Verdict: check.Fail, Reason: "required, and not run: " + reason})
		rows = append(rows, []string{"required", name, check.Fail.String(), "", "", "", "", reason})
	}
	return rows
}

// tableAndExit prints the table and what became of the results.
func tableAndExit(cmd *cobra.Command, r *report.Report, header []string, rows [][]string) error {
	if err := report.Table(cmd.OutOrStdout(), header, rows); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n", opsSummary(r))
	if r.Exit != check.ExitPass {
		return cli.Exit{Code: r.Exit}
	}
	return nil
}

// judge runs the cases of an op under the variant in use.
func (j *opsJob) judge(k kernel, variant string, result *check.Result) *op.Report {
	var done *op.Report
	if j.one != nil {
		done = k.Under(variant).CheckCase(*j.one)
	} else {
		done = k.Under(variant).Check(j.seed, j.cases, false)
	}
	*result = j.result(k.Op, variant, done)
	return done
}

// result is the verdict on the cases of an op.
func (j *opsJob) result(o op.Op, variant string, done *op.Report) check.Result {
	result := check.Bound(variant, "err/bound: "+o.Bound, done.Tally.Worst.Ratio, 1, done.Compared())
	result.Check, result.Resolution, result.Formula = "ops/"+o.Name, done.Tally.Resolution(), o.Doc
	if done.Failed > 0 {
		result.Verdict = check.Fail
		result.Reason = done.String()
		result.Repeat = fmt.Sprintf("--run '^%s$' --variant %s --case %v", o.Name, variant, done.First)
	}
	return result
}

func opsSummary(r *report.Report) string {
	n := map[check.Verdict]int{}
	for _, result := range r.Results {
		n[result.Verdict]++
	}
	features := cmp.Or(strings.Join(cpu.Features(), "; "), "no feature that a kernel asks for")
	undecided := ""
	if n[check.Undetermined] > 0 {
		undecided = fmt.Sprintf(", %d undetermined", n[check.Undetermined])
	}
	return fmt.Sprintf("%d passed, %d failed%s, %d not run. This machine: %s", n[check.Pass], n[check.Fail], undecided, n[check.Skip], features)
}

// opFaults runs the faults of the ops.
func opFaults(cmd *cobra.Command, j opsJob) error {
	var rows [][]string
	missed := 0
	for _, k := range j.kernels {
		j.planted = append(j.planted, k.Op)
	}
	for _, k := range j.planted {
		for _, f := range k.Faults {
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			done := f.Check(j.seed, j.cases, true)
			said := "caught in case " + fmt.Sprint(done.Cases)
			if done.OK() {
				missed++
				said = "MISSED"
			}
			rows = append(rows, []string{k.Name, f.ID, f.Title, said})
		}
	}
	if err := report.Table(cmd.OutOrStdout(), []string{"op", "fault", "what it does", ""}, rows); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%d of %d caught\n", len(rows)-missed, len(rows))
	if missed > 0 {
		return cli.Exit{Code: check.ExitFail}
	}
	return nil
}
