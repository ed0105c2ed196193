// Command benchtable turns the output of go test -bench into tables: of one file, or of a file before and one after a change.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"plumbline/cmd/internal/cli"
	"plumbline/verify/check"
	"plumbline/verify/report"
)

func main() { os.Exit(cli.Run(newRoot(), os.Args[1:], exitCode)) }

// usageError is an error of the command line, fileError one in what a file holds.
type (
	usageError struct{ msg string }
	fileError  struct{ err error }
)

func (e usageError) Error() string { return e.msg }
func (e fileError) Error() string  { return e.err.Error() }

var errNothing = errors.New("no benchmark in it")

func exitCode(err error) int {
	switch {
	case errors.Is(err, errNothing):
		return check.ExitNothing
	case cli.Is[fileError](err):
		return check.ExitMalformed
	case cli.Is[usageError](err), cli.NoSuchPath(err):
		return check.ExitUsage
	}
	return check.ExitInternal
}

func newRoot() *cobra.Command {
	var (
		format, run, unit, page string
		columns                 []string
		limit                   float64
	)
	cmd := &cobra.Command{
		Use:   "benchtable FILE [AFTER]",
		Short: "turns Go benchmark output into tables",
		Long: `benchtable prints the best and the median of every benchmark in a file that go test -bench wrote (- is stdin), with its share of
the peak probe. Of two files it prints the ratio of medians, after over before, with its 95 % interval by resampling: a change is
claimed only where there are ten runs on both sides (go test -count 10) and the interval leaves out 1.

Exit 1 with --limit if a benchmark is worse than the limit allows; 4 a file that is no benchmark output; 5 no benchmark in it.`,
		Example: `  go test -run '^$' -bench Gemm -count 10 ./benchmarks > after.txt
  benchtable after.txt
  benchtable before.txt after.txt --format markdown
  benchtable --fill benchmarks/README.md`,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if page != "" {
				if len(args) > 0 {
					return usageError{"--fill takes its files from the markers of " + page}
				}
				n, err := fillFile(page)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %d tables\n", page, n)
				}
				return err
			}
			if len(args) < 1 || len(args) > 2 {
				return usageError{"want one file, or one before and one after"}
			}
			if format != "human" && format != "markdown" {
				return usageError{fmt.Sprintf("--format %q: want human or markdown", format)}
			}
			pattern, err := regexp.Compile(run)
			if err != nil {
				return usageError{fmt.Sprintf("--run %q: %v", run, err)}
			}
			var files []*results
			for _, name := range args {
				r, err := read(cmd, name, pattern)
				if err != nil {
					return err
				}
				files = append(files, r)
			}
			write := func(header []string, rows [][]string) error {
				if format == "markdown" {
					return markdown(cmd.OutOrStdout(), header, rows)
				}
				return report.Table(cmd.OutOrStdout(), header, rows)
			}
			if len(files) == 1 {
				units := files[0].units()
				for _, c := range columns {
					if !slices.Contains(units, c) {
						return usageError{fmt.Sprintf("--columns %s: %s has %s", c, args[0], strings.Join(units, ", "))}
					}
				}
				if columns == nil {
					columns = units
				}
				return write(one(files[0], columns))
			}
			header, rows, worst := two(files[0], files[1], unit)
			if len(rows) == 0 {
				return fmt.Errorf("%s and %s share no benchmark with %s: %w", args[0], args[1], unit, errNothing)
			}
			if err := write(header, rows); err != nil {
				return err
			}
			if limit > 0 && worst > limit {
				return cli.Exit{Code: check.ExitFail}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "human", "form of the table: human, markdown")
	f.StringVar(&run, "run", "", "only benchmarks whose name matches this regular expression")
	f.StringSliceVar(&columns, "columns", nil, "of one file: only these units")
	f.StringVar(&page, "fill", "", "write the tables between the markers <!-- benchtable FILE --run … --columns … --> and <!-- /benchtable --> of this file anew")
	f.StringVar(&unit, "unit", "ns/op", "what is compared of two files")
	f.Float64Var(&limit, "limit", 0, "of two files: exit 1 if one is claimed to be worse by more than this factor; 0: no limit")
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{cli.FlagError(cmd, err)} })
	return cmd
}

func read(cmd *cobra.Command, name string, pattern *regexp.Regexp) (*results, error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	r, err := parse(in)
	if err != nil {
		return nil, fileError{fmt.Errorf("%s: %w", name, err)}
	}
	kept := r.list[:0]
	for _, b := range r.list {
		if pattern.MatchString(b.name) {
			kept = append(kept, b)
		}
	}
	if r.list = kept; len(kept) == 0 {
		return nil, fmt.Errorf("%s: %w", name, errNothing)
	}
	return r, nil
}

// one is the table of a file: the best of the runs, and the median where there are several.
func one(r *results, units []string) (header []string, rows [][]string) {
	header = append([]string{"benchmark", "runs"}, units...)
	for _, b := range r.list {
		row := []string{b.name, ""}
		for _, u := range units {
			x := b.values[u]
			cell := ""
			if len(x) > 0 {
				row[1] = strconv.Itoa(len(x))
				cell = number(best(u, x))
				if len(x) > 1 {
					cell += " (" + number(median(x)) + ")"
				}
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return header, rows
}

// two is the table of a change, and the largest factor by which a benchmark is claimed to be worse.
func two(before, after *results, unit string) (header []string, rows [][]string, worst float64) {
	header = []string{"benchmark", unit + " before", "after", "ratio", "95 % interval", "runs", "", "of probe"}
	for _, b := range before.list {
		a := after.find(b.name)
		if a == nil || len(a.values[unit]) == 0 || len(b.values[unit]) == 0 {
			continue
		}
		r := compare(b.values[unit], a.values[unit])
		said := r.verdict(unit)
		if factor := r.value; said == "WORSE" {
			if better(unit) {
				factor = 1 / factor
			}
			worst = max(worst, factor)
		}
		share := ""
		if p, q := b.values["%probe"], a.values["%probe"]; len(p) > 0 && len(q) > 0 {
			share = fmt.Sprintf("%s → %s %%", number(median(p)), number(median(q)))
		}
		rows = append(rows, []string{b.name, number(median(b.values[unit])), number(median(a.values[unit])), fmt.Sprintf("%.3f", r.value),
			fmt.Sprintf("%.3f … %.3f", r.low, r.high), fmt.Sprintf("%d, %d", len(b.values[unit]), len(a.values[unit])), said, share})
	}
	return header, rows, worst
}

// number prints four significant digits.
func number(v float64) string {
	if v >= 10000 || v <= -10000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

func markdown(w io.Writer, header []string, rows [][]string) error {
	var b strings.Builder
	line := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	line(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, r := range rows {
		line(r)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
