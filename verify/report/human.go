package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode"

	"github.com/olekukonko/tablewriter/tw"

	"plumbline/verify/check"
)

// Without -v.
const (
	maxLines   = 20 // of Lines
	maxDetails = 8  // of one check and verdict; the table has the worst
	maxTied    = 3  // explanations that give the same numbers; the others are named
	maxItems   = 5  // of a Section
	maxInputs  = 4  // files
	maxNames   = 4  // of checks with one reason
)

func moreDetails(shown map[string]int) int {
	more := 0
	for _, n := range shown {
		more += max(0, n-maxDetails)
	}
	return more
}

func (r *Report) human(out io.Writer, opt Options) error {
	w := NewWrapper(out, opt.Width)
	return errors.Join(r.long(w, opt), w.Close())
}

// long prints every result.
func (r *Report) long(w io.Writer, opt Options) error {
	fmt.Fprintf(w, "%s %s\n", r.Tool.Name, r.Command)
	for i, in := range r.Inputs {
		if i == maxInputs && len(r.Inputs) > maxInputs+1 && !opt.Verbose {
			fmt.Fprintf(w, "  … and %d more files (-v)\n", len(r.Inputs)-i)
			break
		}
		fmt.Fprintf(w, "  %-10s %s  (%s, %s)\n", in.Role, Printable(in.Path), in.What, bytesString(in.Size))
	}
	fmt.Fprintln(w)
	if len(r.Results) > 0 && !opt.Details {
		if err := r.table(w, opt); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	shown := map[string]int{} // details by check and verdict
	for i := range r.Results {
		res := &r.Results[i]
		if kind := res.Check + res.Verdict.String(); !opt.Verbose && res.Verdict != check.Pass {
			if shown[kind]++; shown[kind] > maxDetails {
				continue
			}
		}
		switch res.Verdict {
		case check.Fail, check.Convention, check.Undetermined, check.Warn:
			r.detail(w, res, opt)
		case check.Note:
			if !opt.Quiet {
				r.detail(w, res, opt)
			}
		default:
			if opt.Verbose || len(res.Explanations) > 0 && !opt.Quiet {
				r.detail(w, res, opt)
			}
		}
	}
	if r.notSeen(w, opt) {
		fmt.Fprintln(w)
	}
	if more := moreDetails(shown); more > 0 {
		fmt.Fprintf(w, "… %d more findings like these (-v, or --format json)\n\n", more)
	}
	lines := r.Lines
	if !opt.Verbose && len(lines) > maxLines {
		lines = append(lines[:maxLines:maxLines], fmt.Sprintf("… %d more lines (-v)", len(r.Lines)-maxLines))
	}
	if !opt.Quiet {
		for _, l := range lines {
			fmt.Fprintln(w, Printable(l))
		}
		if len(lines) > 0 {
			fmt.Fprintln(w)
		}
	}
	if r.Brief != nil && r.Brief.Coverage != "" && !opt.Quiet { // which the short form may have abridged
		fmt.Fprintf(w, "blind: %s\n\n", Printable(coverage(r.Brief)))
	}
	for _, s := range r.Lists {
		if !opt.Quiet {
			s.human(w, opt)
		}
	}
	for _, f := range r.Files {
		fmt.Fprintf(w, "written: %s\n", Printable(f))
	}
	if r.Err != "" {
		fmt.Fprintf(w, "%s: %s\n", paint("ERROR", "31;1", opt.Color), Printable(r.Err))
	}
	if slices.ContainsFunc(r.Results, func(res check.Result) bool { return res.Verdict == check.Convention }) {
		fmt.Fprintf(w, "%s: %s\n", check.Convention, conventionMeans)
	}
	fmt.Fprintf(w, "%s. exit %d: %s\n", r.counts(), r.Exit, meaning(r.Exit))
	return nil
}

// notSeen prints what the input does not have, a line for each reason: what that hides is easily forgotten.
func (r *Report) notSeen(w io.Writer, opt Options) bool {
	var reasons []string
	checks := map[string][]string{}
	for i := range r.Results {
		if res := &r.Results[i]; res.Verdict == check.NotSeen && !opt.Verbose {
			if checks[res.Reason] == nil {
				reasons = append(reasons, res.Reason)
			}
			checks[res.Reason] = append(checks[res.Reason], res.Check)
		}
	}
	for _, reason := range reasons {
		list := checks[reason]
		if more := len(list) - maxNames; more > 1 {
			list = append(list[:maxNames:maxNames], fmt.Sprintf("%d more", more))
		}
		fmt.Fprintf(w, "%s  %s: %s\n", paintVerdict(check.NotSeen, opt.Color), strings.Join(list, ", "), Printable(reason))
	}
	return len(reasons) > 0
}

// human prints a short list, and of a long one how long it is.
func (s *Section) human(w io.Writer, opt Options) {
	if len(s.Items) > maxItems && !s.Whole && !opt.Verbose {
		fmt.Fprintf(w, "%s: %d (-v lists them)\n\n", Printable(s.Title), len(s.Items))
		return
	}
	fmt.Fprintf(w, "%s:\n", Printable(s.Title))
	for _, item := range s.Items {
		fmt.Fprintf(w, "  %s\n", Printable(item))
	}
	fmt.Fprintln(w)
}

// table prints one line per check, the worst result of each, or every result with -v.
func (r *Report) table(w io.Writer, opt Options) error {
	type row struct {
		res  *check.Result
		more int
	}
	var rows []row
	at := map[string]int{}
	for i := range r.Results {
		res := &r.Results[i]
		if opt.Quiet && (res.Verdict == check.Pass || res.Verdict == check.Note) {
			continue
		}
		j, seen := at[res.Check]
		if opt.Verbose || !seen {
			at[res.Check] = len(rows)
			rows = append(rows, row{res: res})
			continue
		}
		rows[j].more++
		if worse(res, rows[j].res) {
			rows[j].res = res
		}
	}
	if len(rows) == 0 {
		return nil
	}
	var cells [][]string
	for _, row := range rows {
		res := row.res
		measured, limit, ratio := "", "", ""
		if res.Metric != "" {
			measured, limit = number(res.Measured), limitOf(res.Limit)
			if res.Limit > exactly || math.IsNaN(res.Limit) {
				ratio = fmt.Sprintf("%.2g", res.Ratio())
			}
		}
		of := shorten(Printable(res.Subject), 44)
		if row.more > 0 {
			of += fmt.Sprintf(" (+%d)", row.more)
		}
		cells = append(cells, []string{paintVerdict(res.Verdict, opt.Color), res.Check, of, measured, limit, ratio})
	}
	return alignedTable(w, []string{"verdict", "check", "of", "measured", "limit", "× limit"}, []tw.Align{tw.AlignLeft, tw.AlignLeft, tw.AlignLeft, tw.AlignRight, tw.AlignRight, tw.AlignRight}, cells)
}

// detail prints a result in the order: what was compared, the numbers, where, the explanation, the fix, how to repeat.
func (r *Report) detail(w io.Writer, res *check.Result, opt Options) {
	head := fmt.Sprintf("%s  %s", paintVerdict(res.Verdict, opt.Color), res.Check)
	if res.Subject != "" {
		head += "  " + Printable(res.Subject)
	}
	if res.Metric != "" {
		head += fmt.Sprintf("  %s = %s", res.Metric, number(res.Measured))
		switch {
		case res.Verdict == check.Undetermined:
			head += fmt.Sprintf(", limit %s", limitOf(res.Limit))
		case res.Measured > res.Limit && res.Limit >= 0 && res.Limit <= exactly:
			head += ", want exactly 0"
		case res.Measured > res.Limit && res.Limit > 0:
			head += fmt.Sprintf(" > %s (%.3g × limit)", limitOf(res.Limit), res.Ratio())
		case res.Measured > res.Limit:
			head += fmt.Sprintf(" > %s", limitOf(res.Limit))
		case math.IsNaN(res.Measured):
			head += fmt.Sprintf(", limit %s", limitOf(res.Limit))
		}
	}
	fmt.Fprintln(w, head)
	field := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "      %-12s %s\n", name, Printable(text))
		}
	}
	field("formula", res.Formula)
	field("finding", res.Reason)
	field("where", res.Where)
	explain(res, opt, field)
	if opt.Verbose {
		for _, text := range res.Details {
			field("detail", text)
		}
	}
	if opt.Verbose || res.Verdict == check.Fail || res.Verdict == check.Convention {
		var facts []string
		for _, f := range res.Facts {
			facts = append(facts, f.Name+" "+number(f.Value))
		}
		if res.Resolution > 0 {
			facts = append(facts, "resolution "+number(res.Resolution))
		}
		field("numbers", strings.Join(facts, ", "))
	}
	field("fix", res.Fix)
	if res.Verdict != check.Note && res.Verdict != check.Pass {
		field("repeat", r.repeat(res))
	}
	fmt.Fprintln(w)
}

// explain prints the explanations, of many that give the same numbers the first few and the names of the others.
func explain(res *check.Result, opt Options, field func(name, text string)) {
	tied := len(res.Class) > 1
	for i, e := range res.Explanations {
		if tied && i == maxTied && !opt.Verbose {
			break
		}
		text := e.Title
		if e.Fault != "" {
			text = e.Fault + ": " + text
		}
		if e.Evidence != "" {
			text += " (" + e.Evidence + ")"
		}
		if e.Lead {
			text += "  [a lead, not proven]"
		}
		if name := "explanation"; tied && i > 0 {
			field("  or", text)
		} else {
			field(name, text)
		}
		if opt.Verbose {
			field("  cause", e.Cause)
			field("  catalogue", strings.Join(e.Rows, ", "))
			if e.Apart > 0 {
				field("  apart", fmt.Sprintf("the right numbers are up to %.2g limits away from these", e.Apart))
			}
		}
	}
	if !tied {
		return
	}
	text := "these give the same numbers on these data, and any of them may be true"
	if more := res.Class[min(maxTied, len(res.Class)):]; len(more) > 0 && !opt.Verbose {
		text = fmt.Sprintf("so do on these data: %s (-v)", strings.Join(more, ", "))
	}
	field("  tied", text)
}

// exactly is the limit up to which a number has to be the exact one: half the smallest number of a storage format, which is
// what remains of a bound where 0 is due.
const exactly = 1e-40

func number(v float64) string { return fmt.Sprintf("%.4g", v) }

// limitOf formats a limit, which is 0 where the exact number is due.
func limitOf(v float64) string {
	if v >= 0 && v <= exactly {
		v = 0
	}
	return number(v)
}

func bytesString(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d bytes", n)
}

// shorten keeps the end of a long name, where tensor names differ.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return "…" + string(r[len(r)-n+1:])
}

// Printable replaces control characters, line separators and marks of writing direction: the name of a file or a tensor
// must not drive the terminal.
func Printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c != '\t' && unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return unicode.ReplacementChar
		}
		return c
	}, s)
}

func paint(s, code string, on bool) string {
	if !on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func paintVerdict(v check.Verdict, on bool) string {
	code := "2"
	switch v {
	case check.Pass:
		code = "32"
	case check.Fail:
		code = "31;1"
	case check.Convention, check.Undetermined, check.Warn:
		code = "33"
	case check.Note:
		code = "36"
	}
	return paint(v.String(), code, on)
}
