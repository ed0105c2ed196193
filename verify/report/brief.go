package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"plumbline/verify/check"
)

// Limits of the short form.
const (
	mostLines    = 24 // of one finding with all around it
	defaultWidth = 80
	leastWidth   = 40
	fewFindings  = 6 // that are shown in full
)

// plainLetters are the characters of the short form on a terminal that has ASCII only.
var plainLetters = strings.NewReplacer("✗", "x", "✓", "ok", "·", "-", "−", "-", "–", "-", "…", "...", "×", "x", "Δ", "d", "≤", "<=", "≥", ">=", "½", "1/2", "²", "^2", "√", "sqrt", "Σ", "sum ",
	"∂", "d", "ρ", "r", "β", "beta", "λ", "lambda", "γ", "gamma", "ε", "eps", "σ", "sigma", "μ", "mu", "→", "->", "—", "-", "‖", "||", "ᵀ", "^T", "ℓ", "l", "±", "+-", "∞", "inf", "⟨", "<", "⟩", ">")

// screen is lines of one width.
type screen struct {
	lines []string
	width int
	ascii bool
}

// text puts words on lines under a heading; further lines are indented as the first word is.
func (p *screen) text(head, text string, most int) { p.marked(head, text, most, " …") }

// marked ends with a mark what it does not print whole.
func (p *screen) marked(head, text string, most int, mark string) {
	if text == "" {
		return
	}
	indent := strings.Repeat(" ", utf8.RuneCountInString(head))
	room := max(p.width-utf8.RuneCountInString(head), leastWidth/2) // a heading may be longer than the screen
	lines := wrapped(p.plain(text), room)
	if most > 0 && len(lines) > most {
		lines = abridged(p.plain(text), room, most, p.plain(mark))
	}
	for i, l := range lines {
		if i > 0 {
			head = indent
		}
		p.lines = append(p.lines, strings.TrimRight(p.plain(head)+l, " "))
	}
}

func (p *screen) blank() {
	if n := len(p.lines); n > 0 && p.lines[n-1] != "" {
		p.lines = append(p.lines, "")
	}
}

func (p *screen) plain(s string) string {
	if p.ascii {
		return plainLetters.Replace(s)
	}
	return s
}

// wrapped breaks text at spaces into lines of at most width; a longer word stands alone, and is broken where it does not fit.
func wrapped(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Split(Printable(text), " ") {
		for n := utf8.RuneCountInString(word); n > width; n = utf8.RuneCountInString(word) {
			if line != "" {
				lines = append(lines, line)
				line = ""
			}
			r := []rune(word)
			lines, word = append(lines, string(r[:width])), string(r[width:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// abridged is as much of a text as fits into a number of lines with a mark at its end: whole clauses if they are at least half of that, else
// whole words, and a part of a word that is too long.
func abridged(text string, width, most int, mark string) []string {
	r := []rune(Printable(text))
	r = r[:min(len(r), width*most)]
	fits := func(end int) []string {
		if lines := wrapped(strings.TrimRight(string(r[:end]), " ;,:")+mark, width); len(lines) <= most {
			return lines
		}
		return nil
	}
	var words []string
	least := 0
	for end := len(r); end > least; end-- {
		boundary := end < len(r) && r[end] == ' '
		clause := boundary && strings.ContainsRune(";.", r[end-1])
		if !boundary || words != nil && !clause {
			continue
		}
		if lines := fits(end); lines != nil && clause {
			return lines
		} else if lines != nil {
			words, least = lines, end/2
		}
	}
	if words != nil {
		return words
	}
	for end := len(r); end > 0; end-- {
		if lines := fits(end); lines != nil {
			return lines
		}
	}
	return []string{strings.TrimLeft(mark, " ")}
}

// brief prints the report in the few lines of r.Brief.
func (r *Report) brief(w io.Writer, opt Options) error {
	width := cmp.Or(opt.Width, defaultWidth)
	b := r.Brief
	for spare := 0; ; spare++ { // what is least needed goes first, until one finding fits the screen
		p := &screen{width: max(width, leastWidth), ascii: opt.ASCII}
		r.layOut(p, b, opt, spare)
		if len(p.lines) < mostLines || len(b.Findings) > 1 || len(b.Metrics) > 0 || len(b.Tables) > 0 || spare == 4 {
			_, err := io.WriteString(w, painted(p.lines, opt.Color))
			return err
		}
	}
}

func (r *Report) layOut(p *screen, b *check.Brief, opt Options, spare int) {
	seconds := ""
	if r.Run.Seconds > 0 {
		seconds = fmt.Sprintf("%.1f s", r.Run.Seconds)
	}
	if len(b.Findings) == 0 && len(b.Metrics) == 0 && len(b.Tables) == 0 && r.Err == "" && r.Exit == check.ExitPass {
		clean := "✓ " + b.Clean
		if seconds != "" {
			clean += " (" + seconds + ")"
		}
		p.text("", clean, 0)
		p.text("  ", b.Coverage, 0)
		r.urgent(p)
		return
	}
	for _, line := range b.Head {
		p.text("", line, 2)
	}
	p.blank()
	metrics(p, b.Metrics)
	if !opt.Quiet {
		tables(p, b.Tables)
	}
	shown := b.Findings
	if len(shown) > fewFindings {
		shown = shown[:fewFindings]
	}
	for i := range shown {
		if len(shown) > 1 {
			p.text("", fmt.Sprintf("%s %d of %d", mark(shown[i].Verdict), i+1, len(b.Findings)), 0)
		}
		finding(p, &shown[i], spare)
		p.blank()
	}
	if more := b.Findings[len(shown):]; len(more) > 0 {
		var names []string
		for _, f := range more {
			names = append(names, f.Name)
		}
		p.text("", fmt.Sprintf("… and %d more (-v): %s", len(more), strings.Join(names, ", ")), 3)
		p.blank()
	}
	if len(b.Findings) == 0 && b.Clean != "" && r.Err == "" && r.Exit == check.ExitPass {
		p.text(mark(check.Pass)+" ", b.Clean, 3)
	}
	var stages []string
	for _, s := range b.Stages {
		stages = append(stages, s.Name+" "+mark(s.Verdict))
	}
	if !opt.Quiet {
		p.text("  ", strings.Join(stages, " "), 0)
	}
	blind := []int{4, 3, 2, 2, 1}[spare]
	p.marked("  blind   ", b.Coverage, blind, "; … (-v)")
	if !opt.Quiet && spare < 4 {
		p.blank()
		for i, c := range b.Next {
			if i == 0 {
				p.text("next    ", c, 0)
			} else if spare < 2 {
				p.text("        ", c, 0)
			}
		}
	}
	r.urgent(p)
	if r.Err != "" {
		p.text("ERROR: ", r.Err, 0)
	}
	p.blank()
	p.text("", r.headline(), 2)
}

// tables prints lines as they are, cut at the width of the screen.
func tables(p *screen, list []check.Table) {
	for _, t := range list {
		p.text("", t.Title, 1)
		for _, l := range t.Lines {
			line := []rune("  " + p.plain(Printable(l)))
			p.lines = append(p.lines, strings.TrimRight(string(line[:min(len(line), max(p.width, defaultWidth))]), " "))
		}
		p.blank()
	}
}

// metrics prints a row for each metric of a log: those with a finding, and the others up to a screen of them.
func metrics(p *screen, list []check.Metric) {
	if len(list) == 0 {
		return
	}
	const most, longest, blocks = 30, 26, 16 // 48 columns of 80: what is said of the values has 32
	shown := list
	if len(list) > most {
		shown = nil
		for _, bad := range []bool{true, false} {
			for _, m := range list {
				if bad == (m.Verdict != check.Pass) && len(shown) < most {
					shown = append(shown, m)
				}
			}
		}
	}
	width := 0
	for _, m := range shown {
		width = max(width, min(longest, utf8.RuneCountInString(Printable(m.Name))))
	}
	for _, m := range shown {
		name := shorten(Printable(m.Name), longest)
		spark := m.Spark
		if p.ascii {
			spark = plainBars.Replace(spark)
		}
		head := fmt.Sprintf("%s %s%s  %s%s  ", mark(m.Verdict), name, strings.Repeat(" ", max(0, width-utf8.RuneCountInString(name))), spark, strings.Repeat(" ", max(0, blocks-utf8.RuneCountInString(spark))))
		text := m.Text
		if m.Verdict != check.Pass && m.First >= 0 {
			text = fmt.Sprintf("step %d: %s", m.First, text)
		}
		if room := p.width - utf8.RuneCountInString(head); room >= 20 {
			p.text(head, text, 1)
		} else {
			p.text("", head, 1)
			p.text("    ", text, 1)
		}
	}
	if more := len(list) - len(shown); more > 0 {
		p.text("", fmt.Sprintf("· %d more metrics without a finding (-v)", more), 1)
	}
	p.blank()
}

// plainBars are the blocks of a sparkline in ASCII.
var plainBars = strings.NewReplacer("▁", "_", "▂", ".", "▃", "-", "▄", "-", "▅", "=", "▆", "=", "▇", "#", "█", "#")

// urgent prints the lines that are warnings, and what has changed since a stored report.
func (r *Report) urgent(p *screen) {
	for _, l := range r.Lines {
		if strings.HasPrefix(l, "WARN: ") || strings.HasPrefix(l, "since baseline: ") {
			p.text("  ", l, 2)
		}
	}
	for _, f := range r.Files {
		p.text("  written: ", f, 0)
	}
}

// finding puts a finding on the screen; spare is how much is left out.
func finding(p *screen, f *check.Finding, spare int) {
	name := "  " + f.Name + "  "
	if f.Known {
		name += "known: "
	}
	if f.Pattern {
		name += "pattern: "
	}
	p.text(name, f.Title, 3)
	where, numbers := f.Where, ""
	if f.Right != "" {
		numbers = fmt.Sprintf("got %s   right %s", f.Got, f.Right)
	}
	if both := where + "   " + numbers; utf8.RuneCountInString(both) <= p.width-4 {
		where, numbers = both, ""
	}
	p.text("    ", strings.TrimSpace(where), 2)
	p.text("    ", numbers, 1)
	if f.Yours != "" && f.Theirs != "" {
		p.text("    yours   ", f.Yours, 2)
		p.text("    "+fmt.Sprintf("%-8s", label(f.Whose)), f.Theirs, 2)
	}
	if spare < 3 || f.Pattern { // of a pattern it is all there is to see
		label := "    gives   "
		if f.Cause != "" || f.Better != "" {
			label = "    seen    "
		}
		p.text(label, f.Evidence, []int{3, 3, 3, 3, 2}[spare])
	}
	p.text("    cause   ", f.Cause, 3)
	if f.Cause != "" {
		p.text("    better  ", f.Better, 4)
	} else {
		p.text("    cause   ", f.Better, 4)
	}
	if spare < 1 || len(f.Or) == 1 && spare < 3 {
		for i, or := range f.Or {
			if i == 2 {
				p.text("    or      ", fmt.Sprintf("%d more explanations give the same numbers (-v)", len(f.Or)-i), 1)
				break
			}
			p.text("    or      ", or, 2)
		}
	} else if len(f.Or) > 0 { // a name is not told without its rivals
		var names []string
		for _, or := range f.Or {
			name, _, _ := strings.Cut(or, ": ")
			names = append(names, name)
		}
		p.text("    or      ", strings.Join(names, ", ")+" (-v)", 1)
	}
	if spare < 4 {
		p.text("    effect  ", f.Effect, []int{2, 2, 2, 1}[spare])
	}
	if f.Verdict == check.Convention && spare < 3 {
		p.text("    so      ", check.Convention.String()+": "+conventionMeans, 2)
	}
	p.text("    fix     ", f.Fix, []int{4, 3, 3, 2, 2}[spare])
	p.text("    follows ", strings.Join(f.Follows, ", "), 4)
	p.text("    dump    ", f.Dump, 2)
	if len(f.Seen) > 0 {
		list := f.Seen
		if len(list) > 6 {
			list = append(list[:6:6], fmt.Sprintf("%d more", len(f.Seen)-6))
		}
		p.text("    seen in ", strings.Join(list, ", "), []int{2, 2, 2, 1, 1}[spare])
	}
}

// conventionMeans defines the verdict where it is printed.
const conventionMeans = "right under another legal option than the declared one"

// headline is the finding in a line, how many of several are CONVENTION, and the exit code.
func (r *Report) headline() string {
	end := fmt.Sprintf("exit %d: %s", r.Exit, meaning(r.Exit))
	var names []string
	verdict, first, conventions, known := check.Pass, -1, 0, 0
	for _, f := range r.Brief.Findings {
		if f.Known {
			known++
			continue
		}
		if r.Exit == check.ExitFail && f.Verdict != check.Fail && f.Verdict != check.Convention && r.Brief.Findings[0].Verdict != f.Verdict {
			continue
		}
		if verdict == check.Pass || slices.Index(severity, f.Verdict) < slices.Index(severity, verdict) {
			verdict = f.Verdict
		}
		if f.Verdict == check.Convention {
			conventions++
		}
		if !slices.Contains(names, f.Name) {
			names = append(names, f.Name)
		}
		if f.First >= 0 && (first < 0 || f.First < first) {
			first = f.First
		}
	}
	if known > 0 {
		end += fmt.Sprintf(" beside %d known from the baseline", known)
	}
	if len(names) == 0 {
		return end
	}
	more := ""
	if len(names) > 3 {
		more = fmt.Sprintf(" and %d more", len(names)-3)
		names = names[:3]
	}
	text := mark(verdict) + " " + strings.Join(names, ", ") + more
	if first >= 0 {
		text += fmt.Sprintf(", from step %d", first)
	}
	if conventions > 0 {
		text += fmt.Sprintf(" (%d %s)", conventions, check.Convention)
	}
	return text + ". " + end
}

func mark(v check.Verdict) string {
	switch v {
	case check.Pass:
		return "✓"
	case check.Fail, check.Convention:
		return "✗"
	case check.Undetermined:
		return "?"
	case check.Warn:
		return "!"
	}
	return "·"
}

// painted joins lines, those that begin with a mark in its colour.
func painted(lines []string, on bool) string {
	var b strings.Builder
	for _, l := range lines {
		code := ""
		switch {
		case strings.HasPrefix(l, "✓"), strings.HasPrefix(l, "ok "):
			code = "32"
		case strings.HasPrefix(l, "✗"), strings.HasPrefix(l, "x "):
			code = "31;1"
		case strings.HasPrefix(l, "?"), strings.HasPrefix(l, "!"):
			code = "33"
		}
		if code == "" {
			b.WriteString(l)
		} else {
			b.WriteString(paint(l, code, on))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// label puts the name of a framework into the width of the words beside a finding, or one column more where it has one letter more.
func label(name string) string {
	if utf8.RuneCountInString(name) == 8 {
		return name + " "
	}
	return shorten(name, 7)
}

// coverage is what would show, and what was logged and is not read.
func coverage(b *check.Brief) string {
	if b.Coverage == "" || b.Unread == "" {
		return b.Coverage
	}
	return b.Coverage + "; " + b.Unread
}
