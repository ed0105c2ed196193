package report

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode"

	"github.com/olekukonko/tablewriter/tw"

	"plumbline/verify/check"
)

// Without -v.
const (
	maxLines   = 20 // of Lines
	maxDetails = 8  // of one check and verdict; the table has the worst
)

func moreDetails(shown map[string]int) int {
	more := 0
	for _, n := range shown {
		more += max(0, n-maxDetails)
	}
	return more
}

func (r *Report) human(w io.Writer, opt Options) error {
	fmt.Fprintf(w, "%s %s\n", r.Tool.Name, r.Command)
	for _, in := range r.Inputs {
		fmt.Fprintf(w, "  %-10s %s  (%s, %s)\n", in.Role, Printable(in.Path), in.What, bytesString(in.Size))
	}
	fmt.Fprintln(w)
	if len(r.Results) > 0 {
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
	for _, f := range r.Files {
		fmt.Fprintf(w, "written: %s\n", Printable(f))
	}
	if r.Err != "" {
		fmt.Fprintf(w, "%s: %s\n", paint("ERROR", "31;1", opt.Color), Printable(r.Err))
	}
	fmt.Fprintf(w, "%s. exit %d: %s\n", r.counts(), r.Exit, meaning(r.Exit))
	return nil
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
	t := newTable(w, []tw.Align{tw.AlignLeft, tw.AlignLeft, tw.AlignLeft, tw.AlignRight, tw.AlignRight, tw.AlignRight})
	t.Header("verdict", "check", "of", "measured", "limit", "× limit")
	for _, row := range rows {
		res := row.res
		measured, limit, ratio := "", "", ""
		if res.Metric != "" {
			measured, limit = number(res.Measured), number(res.Limit)
			if res.Limit != 0 {
				ratio = fmt.Sprintf("%.2g", res.Ratio())
			}
		}
		of := shorten(Printable(res.Subject), 44)
		if row.more > 0 {
			of += fmt.Sprintf(" (+%d)", row.more)
		}
		if err := t.Append(paintVerdict(res.Verdict, opt.Color), res.Check, of, measured, limit, ratio); err != nil {
			return err
		}
	}
	return t.Render()
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
			head += fmt.Sprintf(", limit %s", number(res.Limit))
		case res.Measured > res.Limit && res.Limit > 0:
			head += fmt.Sprintf(" > %s (%.3g × limit)", number(res.Limit), res.Ratio())
		case res.Measured > res.Limit:
			head += fmt.Sprintf(" > %s", number(res.Limit))
		case math.IsNaN(res.Measured):
			head += fmt.Sprintf(", limit %s", number(res.Limit))
		}
	}
	fmt.Fprintln(w, head)
	field := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "      %-12s %s\n", name, Printable(text))
		}
	}
	field("finding", res.Reason)
	field("where", res.Where)
	for _, e := range res.Explanations {
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
		field("explanation", text)
	}
	if opt.Verbose || res.Verdict == check.Fail {
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

func number(v float64) string { return fmt.Sprintf("%.4g", v) }

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
