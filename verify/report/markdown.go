package report

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// MaxMarkdown is the size of the longest markdown report, in bytes: GitHub drops a step summary above 1 MiB.
const MaxMarkdown = 900_000

// Worst returns the results that say that something is wrong or open, the worst of each check, worst first, at most n.
func (r *Report) Worst(n int) []*check.Result {
	var worst []*check.Result
	at := map[string]int{}
	for i := range r.Results {
		res := &r.Results[i]
		if !needsAttention(res.Verdict) {
			continue
		}
		j, seen := at[res.Check]
		switch {
		case !seen:
			at[res.Check] = len(worst)
			worst = append(worst, res)
		case worse(res, worst[j]):
			worst[j] = res
		}
	}
	slices.SortStableFunc(worst, bySeverity)
	return worst[:min(n, len(worst))]
}

func needsAttention(v check.Verdict) bool {
	return v == check.Fail || v == check.Convention || v == check.Undetermined || v == check.Warn
}

func bySeverity(a, b *check.Result) int {
	switch {
	case worse(a, b):
		return -1
	case worse(b, a):
		return 1
	}
	return 0
}

// summary is markdown that stops growing before it is too long.
type summary struct {
	bytes.Buffer
	left int
}

// add appends text whole, or not at all if there is no room for it.
func (p *summary) add(text string) bool {
	if len(text) > p.left {
		return false
	}
	p.left -= len(text)
	p.WriteString(text)
	return true
}

// Markdown writes the report as GitHub-flavoured markdown of at most limit bytes: a table with the worst result of each check,
// every finding as the terminal has it, and what was read. Of what there is no room for it says how much there is.
func (r *Report) Markdown(w io.Writer, limit int) error {
	const reserved = 1000 // for what is said at the end
	p := &summary{left: limit - reserved}
	icon := map[bool]string{true: "✅", false: "❌"}[r.Exit == check.ExitPass]
	p.add(fmt.Sprintf("## %s %s %s: %s\n\n%s. Exit code %d.\n\n", icon, plain(r.Tool.Name), plain(r.Command), meaning(r.Exit), r.counts(), r.Exit))
	if r.Err != "" {
		p.add("**Error:** " + plain(shorten(r.Err, 2000)) + "\n\n")
	}
	if r.Brief != nil {
		var text strings.Builder
		if err := r.brief(&text, Options{Width: 100}); err != nil {
			return err
		}
		p.add(fenced(text.String()))
	}
	more := r.markdownTable(p)
	var bad []*check.Result
	for i := range r.Results {
		if needsAttention(r.Results[i].Verdict) {
			bad = append(bad, &r.Results[i])
		}
	}
	slices.SortStableFunc(bad, bySeverity)
	for i, res := range bad {
		var text strings.Builder
		r.detail(&text, res, Options{})
		if !p.add(fenced(text.String())) {
			more += len(bad) - i
			break
		}
	}
	for _, list := range r.markdownLists() {
		if len(list.Items) > 0 && !p.add(folded(list)) {
			more += len(list.Items)
		}
	}
	p.left += reserved
	if more > 0 {
		p.add(fmt.Sprintf("%d more findings and lines have no room here: they are in the report that `--format json --output FILE` writes, kept as an artifact.\n\n", more))
	}
	if r.Repeat != "" && len(r.Repeat) < reserved/2 {
		p.add(fenced(r.Repeat))
	}
	_, err := w.Write(p.Bytes())
	return err
}

// markdownTable adds a row for each check, and returns how many had no room.
func (r *Report) markdownTable(p *summary) (more int) {
	var order []string
	rows, count := map[string]*check.Result{}, map[string]int{}
	for i := range r.Results {
		res := &r.Results[i]
		if before, seen := rows[res.Check]; !seen {
			order = append(order, res.Check)
			rows[res.Check] = res
		} else if worse(res, before) {
			rows[res.Check] = res
		}
		count[res.Check]++
	}
	if len(order) == 0 {
		return 0
	}
	p.add("| verdict | check | of | measured | limit | × limit |\n|---|---|---|---:|---:|---:|\n")
	half := p.left / 2 // the findings need room, too
	for i, id := range order {
		res := rows[id]
		measured, limit, ratio := "", "", ""
		if res.Metric != "" {
			measured, limit = number(res.Measured), limitOf(res.Limit)
			if res.Limit > exactly {
				ratio = fmt.Sprintf("%.2g", res.Ratio())
			}
		}
		of := plain(shorten(res.Subject, 60))
		if count[id] > 1 {
			of += fmt.Sprintf(" (+%d)", count[id]-1)
		}
		row := fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", res.Verdict, plain(id), of, measured, limit, ratio)
		if p.left-len(row) < half || !p.add(row) {
			more = len(order) - i
			break
		}
	}
	p.add("\n")
	return more
}

// markdownLists are the parts of a report that are folded away.
func (r *Report) markdownLists() []Section {
	inputs := Section{Title: "Files"}
	for _, in := range r.Inputs {
		inputs.Items = append(inputs.Items, fmt.Sprintf("%s  %s (%s, %s)", in.Role, in.Path, in.What, bytesString(in.Size)))
	}
	lists := append([]Section{{Title: "Notes", Items: r.Lines}}, r.Lists...)
	return append(lists, Section{Title: "Written", Items: r.Files}, inputs)
}

// folded is a list that is closed at first.
func folded(s Section) string {
	var items []string
	for _, item := range s.Items {
		items = append(items, Printable(item))
	}
	return fmt.Sprintf("<details><summary>%s (%d)</summary>\n\n%s</details>\n\n", plain(s.Title), len(items), fenced(strings.Join(items, "\n")))
}

// fenced is text in which nothing is markdown.
func fenced(text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "text\n" + strings.TrimRight(text, "\n") + "\n" + fence + "\n\n"
}

// plain is text on one line in which nothing is markdown, a table or HTML.
func plain(s string) string {
	var b strings.Builder
	for _, c := range Printable(s) {
		if strings.ContainsRune("\\`*_[]<>|~#@&!$", c) {
			b.WriteByte('\\')
		}
		if c == '\n' || c == '\r' || c == '\t' {
			c = ' '
		}
		b.WriteRune(c)
	}
	return b.String()
}
