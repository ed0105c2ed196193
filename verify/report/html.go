package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"plumbline/verify/check"
)

//go:embed page/page.css
var pageStyle string

//go:embed page/page.js
var pageScript string

//go:embed page/page.html
var pageBody string

var bodyOf = template.Must(template.New("body").Funcs(template.FuncMap{
	"mark": mark, "class": classOf, "bytes": bytesString,
	"join": func(lines []string) string { return strings.Join(lines, "\n") },
	"seen": func(v check.Verdict) string {
		if v == 0 {
			return nothingJudged
		}
		return v.String()
	},
}).Parse(pageBody))

const nothingJudged = "nothing judged"

// classOf is the class of a verdict in the page.
func classOf(v check.Verdict) string {
	if v == check.Pass || needsAttention(v) {
		return v.String()
	}
	return "none"
}

// maxChecks is the number of results that a page lists.
const maxChecks = 400

// page is what the template prints.
type pageData struct {
	*Report
	Class, Headline string
	Head            []string
	Stages          []check.Stage
	FindingsTitle   string
	Findings        []pageFinding
	Grid            *pageGrid
	Heats           []pageHeat
	Charts          []pageChart
	Metrics         []check.Metric
	Tables          []check.Table
	Coverage        string
	Next            []string
	Checks          []pageCheck
	Counts          string
	More            int
	Issue           string
	Files           string
	Lists           []Section
}

type pageFinding struct {
	check.Finding
	Means, FollowsText, SeenText, RepeatText string
}

type pageCheck struct {
	Verdict                                      check.Verdict
	Known                                        bool
	Check, Subject, Measured, Limit, Ratio, Says string
}

// html writes the report as one page: style, script and pictures are in it, and its policy lets nothing be loaded.
//
// All text goes through html/template, which escapes it, and what drives a terminal or turns the direction of writing is replaced in
// the page as a whole.
func (r *Report) html(w io.Writer) error {
	d, err := r.page()
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := bodyOf.Execute(&body, d); err != nil {
		return err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"+
		"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; img-src data:; base-uri 'none'; form-action 'none'\">\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"referrer\" content=\"no-referrer\"><link rel=\"icon\" href=\"data:,\">\n"+
		"<title>%s</title>\n<style>%s</style></head>\n", hash(pageStyle), hash(pageScript), template.HTMLEscapeString(Printable("verify "+r.Command+": "+d.Headline)), pageStyle)
	for _, line := range strings.SplitAfter(body.String(), "\n") {
		text, end := strings.CutSuffix(line, "\n")
		out.WriteString(Printable(text))
		if end {
			out.WriteByte('\n')
		}
	}
	fmt.Fprintf(&out, "<script>%s</script>\n</body></html>\n", pageScript)
	_, err = w.Write(out.Bytes())
	return err
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func (r *Report) page() (*pageData, error) {
	d := &pageData{Report: r, Counts: r.counts(), Class: classOf(check.Pass)}
	found := r.findings()
	if b := r.Brief; b != nil {
		d.Head, d.Stages, d.Metrics, d.Tables, d.Coverage, d.Next = slices.Clone(b.Head), b.Stages, b.Metrics, b.Tables, coverage(b), b.Next
	}
	d.Headline = Printable(r.pageHeadline(found)) // a path may have a newline
	for i := range d.Head {
		d.Head[i] = Printable(d.Head[i])
	}
	switch {
	case r.Exit == check.ExitPass:
	case r.Exit == check.ExitUndetermined || r.Exit == check.ExitNothing:
		d.Class = classOf(check.Undetermined)
	default:
		d.Class = classOf(check.Fail)
	}
	for _, f := range found {
		p := pageFinding{Finding: f, FollowsText: strings.Join(f.Follows, ", "), SeenText: strings.Join(f.Seen, ", ")}
		if f.Verdict == check.Convention {
			p.Means = check.Convention.String() + ": " + conventionMeans
		}
		if len(f.Results) > 0 {
			p.RepeatText = r.repeat(&r.Results[f.Results[0]])
		}
		d.Findings = append(d.Findings, p)
	}
	d.FindingsTitle = "1 finding"
	if n := len(found); n != 1 {
		d.FindingsTitle = fmt.Sprintf("%d findings", n)
	}
	if p := r.Pictures; p != nil {
		d.Grid = gridOf(p.Grid)
		for i := range p.Heats {
			d.Heats = append(d.Heats, heatOf(&p.Heats[i], i))
		}
		for i := range p.Charts {
			d.Charts = append(d.Charts, pageChart{p.Charts[i].Title, drawn(&p.Charts[i])})
		}
	}
	d.checks()
	d.Files = "1 file"
	if n := len(r.Inputs); n != 1 {
		d.Files = fmt.Sprintf("%d files", n)
	}
	for _, list := range append([]Section{{Title: "notes", Items: r.Lines}}, append(slices.Clone(r.Lists), Section{Title: "written", Items: r.Files})...) {
		if len(list.Items) > 0 {
			d.Lists = append(d.Lists, list)
		}
	}
	var err error
	d.Issue, err = r.issue()
	return d, err
}

// checks lists every result, those that need attention first.
func (d *pageData) checks() {
	var order []*check.Result
	for i := range d.Results {
		order = append(order, &d.Results[i])
	}
	slices.SortStableFunc(order, func(a, b *check.Result) int {
		return slices.Index(severity, a.Verdict) - slices.Index(severity, b.Verdict)
	})
	for i, res := range order {
		if i == maxChecks {
			d.More = len(order) - i
			break
		}
		c := pageCheck{Verdict: res.Verdict, Known: res.Known, Check: res.Check, Subject: res.Subject, Says: res.Reason}
		if res.Metric != "" {
			c.Measured, c.Limit = number(res.Measured), limitOf(res.Limit)
			if res.Limit > exactly {
				c.Ratio = fmt.Sprintf("%.2g", res.Ratio())
			}
		}
		d.Checks = append(d.Checks, c)
	}
}

// findings are the causes of the short form; of a report without one the worst result of each check and subject.
func (r *Report) findings() []check.Finding {
	if r.Brief != nil {
		return r.Brief.Findings
	}
	const most = 50
	var list []check.Finding
	var bad []*check.Result
	for i := range r.Results {
		if needsAttention(r.Results[i].Verdict) {
			bad = append(bad, &r.Results[i])
		}
	}
	slices.SortStableFunc(bad, bySeverity)
	for _, res := range bad[:min(most, len(bad))] {
		f := check.Finding{Verdict: res.Verdict, Known: res.Known, Name: res.Check, Title: res.Reason, Where: res.Where, Fix: res.Fix, Seen: []string{strings.TrimSpace(res.Check + " " + res.Subject)}, First: -1}
		if res.Metric != "" {
			f.Got, f.Right = res.Metric+" = "+number(res.Measured), "at most "+limitOf(res.Limit)
		}
		for i, e := range res.Explanations {
			text := strings.TrimPrefix(e.Fault+": "+e.Title, ": ")
			if e.Evidence != "" {
				text += " (" + e.Evidence + ")"
			}
			if i == 0 && !e.Lead {
				f.Cause = text
				continue
			}
			if e.Lead {
				text = "a lead, not proven: " + text
			}
			f.Or = append(f.Or, text)
		}
		if f.Title == "" && res.Metric != "" {
			f.Title = fmt.Sprintf("%s is %.3g × its limit", res.Metric, res.Ratio())
		}
		for i := range r.Results {
			if &r.Results[i] == res {
				f.Results = []int{i}
			}
		}
		list = append(list, f)
	}
	return list
}

// pageHeadline says the findings in a line, also of a report without a short form.
func (r *Report) pageHeadline(found []check.Finding) string {
	switch {
	case r.Brief == nil:
		return (&Report{Brief: &check.Brief{Findings: found}, Exit: r.Exit}).headline()
	case len(found) == 0 && r.Exit == check.ExitPass && r.Err == "" && r.Brief.Clean != "":
		return mark(check.Pass) + " " + r.Brief.Clean
	}
	return r.headline()
}

// issue is text for a bug tracker: the findings as the terminal has them, and which files and versions they are of.
func (r *Report) issue() (string, error) {
	const fewFiles = 8
	var text strings.Builder
	if r.Brief != nil {
		if err := r.brief(&text, Options{Width: 100}); err != nil {
			return "", err
		}
	} else {
		for _, res := range r.Worst(fewFindings) {
			r.detail(&text, res, Options{})
		}
		fmt.Fprintf(&text, "%s. exit %d: %s\n", r.counts(), r.Exit, meaning(r.Exit))
	}
	fmt.Fprintf(&text, "\n%s %s on %s/%s\n", r.Tool.Name, r.Tool.Version, r.Run.Machine.OS, r.Run.Machine.Arch)
	for i, in := range r.Inputs {
		if i == fewFiles {
			fmt.Fprintf(&text, "… and %d more files\n", len(r.Inputs)-i)
			break
		}
		fmt.Fprintf(&text, "%s  %s  %s\n", in.SHA256, Printable(in.Path), Printable(in.What))
	}
	if r.Repeat != "" {
		fmt.Fprintln(&text, Printable(r.Repeat))
	}
	return fenced(text.String()), nil
}
