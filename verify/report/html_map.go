package report

import (
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// pageGrid is steps × stages as a picture and as what its script reads.
type pageGrid struct {
	Stages   []string
	SVG      template.HTML
	From, To int
	Bad      string
}

// letters stand for verdicts in the data of a grid.
const letters = "0123456789"

// gridOf draws a grid: one path for each verdict, whose cells of one stage that lie side by side are one rectangle, so that a thousand
// steps take some kilobytes. nil for none.
func gridOf(g *check.Grid) *pageGrid {
	if g == nil || len(g.Steps) == 0 || len(g.Stages) == 0 {
		return nil
	}
	const apart = 60 // steps up to which there is a gap between cells
	n := len(g.Steps)
	gap := 0.0
	if n <= apart {
		gap = 0.0025 * float64(n) // two pixels of 800
	}
	paths := map[check.Verdict]*strings.Builder{}
	first, row := -1, -1
	rows := make([]string, len(g.Stages))
	for y, list := range g.Verdicts {
		var line strings.Builder
		for x := 0; x < n; {
			v, from := list[x], x
			for ; x < n && list[x] == v && (gap == 0 || x == from); x++ {
				line.WriteByte(letters[v])
			}
			if (v == check.Fail || v == check.Convention) && (first < 0 || from < first) {
				first, row = from, y
			}
			if v != check.Pass && !needsAttention(v) {
				v = 0
			}
			if paths[v] == nil {
				paths[v] = &strings.Builder{}
			}
			width := float64(x-from) - gap
			fmt.Fprintf(paths[v], "M%d %.4gh%.4gv.88h-%.4gz", from, float64(y)+0.06, width, width)
		}
		rows[y] = line.String()
	}
	var b strings.Builder
	names := map[string]string{}
	for v := check.Pass; v <= check.Untested; v++ {
		names[letters[v:v+1]] = v.String()
	}
	legend, err := json.Marshal(names)
	if err != nil {
		panic(err) // strings only
	}
	label := fmt.Sprintf("%d stages by %d steps", len(g.Stages), n)
	out := &pageGrid{Stages: g.Stages, From: g.Steps[0], To: g.Steps[n-1]}
	if first >= 0 {
		out.Bad = fmt.Sprintf("first bad: step %d, %s", g.Steps[first], g.Stages[row])
		label += "; " + out.Bad
	}
	attr := template.HTMLEscapeString
	fmt.Fprintf(&b, `<svg class="map" tabindex="0" role="img" aria-label="%s" viewBox="0 0 %d %d" preserveAspectRatio="none" height="%.4grem" data-steps="%s" data-stages="%s" data-verdicts="%s" data-names="%s" data-first="%d" data-row="%d">`,
		attr(label), n, len(g.Stages), 1.45*float64(len(g.Stages)), ranges(g.Steps), attr(strings.Join(g.Stages, ",")), strings.Join(rows, ","), attr(string(legend)), first, row)
	for v := check.Verdict(0); v <= check.Untested; v++ {
		if p := paths[v]; p != nil {
			fmt.Fprintf(&b, `<path class="v-%s" d="%s"/>`, classOf(v), p)
		}
	}
	if first >= 0 {
		fmt.Fprintf(&b, `<line class="first" x1="%d" x2="%d" y1="0" y2="%d"/>`, first, first, len(g.Stages))
	}
	b.WriteString(`<rect class="at" width="0" height="1"/></svg>`)
	out.SVG = template.HTML(b.String())
	return out
}

// ranges writes ascending numbers as 1-4,7.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		from := i
		for i++; i < len(list) && list[i] == list[i-1]+1; i++ {
		}
		if i-from > 1 {
			parts = append(parts, fmt.Sprintf("%d-%d", list[from], list[i-1]))
		} else {
			parts = append(parts, fmt.Sprint(list[from]))
		}
	}
	return strings.Join(parts, ",")
}

// pageHeat is a heat map.
type pageHeat struct {
	Title, ID, Note string
	Cells           template.HTML
}

// Heat maps of a page have at most so many tokens.
const (
	maxCells = 2000
	maxWide  = 600 // tokens of a row
)

// levelEdges are the shares of a limit at which the colour changes.
var levelEdges = []float64{0.1, 0.5, 1, 10, 1000}

func level(ratio float64) int {
	if math.IsNaN(ratio) {
		return len(levelEdges)
	}
	at, _ := slices.BinarySearch(levelEdges, ratio)
	return at
}

// heatOf draws a heat map: the rows with the largest ratios, in their order, as running text.
func heatOf(h *check.Heat, i int) pageHeat {
	out := pageHeat{Title: h.Title, ID: fmt.Sprintf("heat-%d", i)}
	hidden, cut := h.Hidden, h.Cut
	var b strings.Builder
	left := maxCells
	worst := make([]int, len(h.Rows))
	top := make([]float64, len(h.Rows))
	for k, row := range h.Rows {
		worst[k] = k
		for _, c := range row.Cells {
			if c.Judged {
				top[k] = math.Max(top[k], c.Ratio) // NaN stays
			}
		}
		if math.IsNaN(top[k]) {
			top[k] = math.Inf(1)
		}
	}
	slices.SortStableFunc(worst, func(x, y int) int {
		switch {
		case top[x] > top[y]:
			return -1
		case top[x] < top[y]:
			return 1
		}
		return 0
	})
	shown := map[int]bool{}
	for _, k := range worst {
		n := min(len(h.Rows[k].Cells), maxWide)
		if n > left {
			break
		}
		shown[k] = true
		left -= n
	}
	text := template.HTMLEscapeString
	for k, row := range h.Rows {
		if !shown[k] {
			hidden++
			continue
		}
		fmt.Fprintf(&b, `<p data-row="%s"><b>%s</b>`, text(row.Name), text(row.Name))
		for c, cell := range row.Cells {
			if c == maxWide {
				cut = max(cut, len(row.Cells)-maxWide)
				break
			}
			class := "m"
			if !cell.Masked {
				class = ""
			}
			value := ""
			if cell.Judged {
				class = strings.TrimSpace(fmt.Sprintf("h%d %s", level(cell.Ratio), class))
				value = fmt.Sprintf("got %.7g, right %.7g, %.3g × limit", cell.Got, cell.Right, cell.Ratio)
			}
			fmt.Fprintf(&b, `<i class="%s" data-t="%s" data-v="%s">%s</i>`, class, text(cell.Place), value, text(shownToken(cell.Text)))
		}
		b.WriteString("</p>\n")
	}
	out.Cells = template.HTML(b.String())
	var notes []string
	if hidden > 0 {
		notes = append(notes, fmt.Sprintf("%d rows that are nearer to right are not shown", hidden))
	}
	if cut > 0 {
		notes = append(notes, fmt.Sprintf("%d tokens at the end of rows are not shown", cut))
	}
	out.Note = strings.Join(append(notes, "Point at a token, or use the arrow keys, for its numbers."), ". ")
	return out
}

// shownToken is the text of a token in which blanks and ends of lines can be seen.
func shownToken(s string) string {
	const long = 40 // letters
	if r := []rune(s); len(r) > long {
		s = string(r[:long]) + "…"
	}
	return blanks.Replace(s)
}

var blanks = strings.NewReplacer(" ", "␣", "\n", "⏎", "\r", "␍", "\t", "⇥")
