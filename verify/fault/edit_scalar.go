package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// loggedReduction is a number that people log of some cells.
type loggedReduction struct {
	title string
	of    func(x []float64) float64
}

func meanOf(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}

func deviationOf(x []float64, ddof float64) float64 {
	m, square := meanOf(x), 0.0
	for _, v := range x {
		square += float64((v - m) * (v - m))
	}
	return math.Sqrt(square / (float64(len(x)) - ddof))
}

var loggedReductions = []loggedReduction{
	{"mean", meanOf},
	{"sum", func(x []float64) float64 { return meanOf(x) * float64(len(x)) }},
	{"largest number", func(x []float64) float64 { return slices.Max(x) }},
	{"smallest number", func(x []float64) float64 { return slices.Min(x) }},
	{"deviation over n − 1", func(x []float64) float64 { return deviationOf(x, 1) }},
	{"deviation over n", func(x []float64) float64 { return deviationOf(x, 0) }},
}

// ofFiles are the ways in which the numbers of micro-batches are made one of the step.
var ofFiles = []loggedReduction{
	{"mean", meanOf},
	{"sum", func(x []float64) float64 { return meanOf(x) * float64(len(x)) }},
	{"last", func(x []float64) float64 { return x[len(x)-1] }},
	{"first", func(x []float64) float64 { return x[0] }},
	{"largest", func(x []float64) float64 { return slices.Max(x) }},
}

// loggedLosses are numbers of a micro-batch that are dumped as such.
var loggedLosses = []string{"loss", "pg_loss", "kl_loss", "value_loss", "entropy_loss"}

// scalarEdits returns edits in which a logged number is that of another quantity of the dump, or of another reduction of its own. Fractions of
// tokens, 0 and 1 are what too many quantities are.
func scalarEdits(o *stage.Outcome) []edit {
	b := o.Case.B
	if slices.Contains(clipMetrics, o.Check.ID) || slices.ContainsFunc(o.Got, func(x float64) bool { return x == 0 || math.Abs(x) == 1 || math.IsNaN(x) }) || b.Cols == 0 {
		return nil
	}
	var list []edit
	add := func(title string, of func(c *stage.Case, file dump.FileInfo, f int) float64) {
		for _, r := range ofFiles {
			text := "the logged number is " + title
			if b.Meta.ScalarsScope == "optimizer_step" && len(b.Files) > 1 {
				text += ", of the micro-batches the " + r.title
			} else if r.title != "mean" {
				break
			}
			list = append(list, edit{id: "METRIC-OF-OTHER", title: text, changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return loggedAs(r, of, c, ch) }})
		}
	}
	for _, name := range loggedLosses {
		if len(b.PerFile(name)) == len(b.Files) {
			add(name, func(c *stage.Case, _ dump.FileInfo, f int) float64 {
				if x := c.B.PerFile(name); len(x) > f {
					return x[f]
				}
				return math.NaN()
			})
		}
	}
	names := slices.DeleteFunc(b.Names(), func(name string) bool {
		t := b.Tensors[name]
		return !numeric[name] || t.Width > 1 || t.Layout != dump.PerToken && t.Layout != dump.PerRow
	})
	for _, name := range names {
		for _, r := range loggedReductions {
			if t := b.Tensors[name]; t.Layout == dump.PerRow {
				add(fmt.Sprintf("the %s of %s over the responses", r.title, name), func(c *stage.Case, file dump.FileInfo, _ int) float64 {
					x := c.B.Row(name)
					if len(x) != c.B.Rows || file.Hi <= file.Lo {
						return math.NaN()
					}
					return r.of(x[file.Lo:file.Hi])
				})
				continue
			}
			for _, every := range []bool{false, true} {
				where := map[bool]string{false: "the tokens", true: "all cells, padding included"}[every]
				add(fmt.Sprintf("the %s of %s over %s", r.title, name, where), func(c *stage.Case, file dump.FileInfo, _ int) float64 {
					x := cellsOf(c, name, file, every)
					if len(x) == 0 {
						return math.NaN()
					}
					return r.of(x)
				})
			}
		}
	}
	return list
}

// cellsOf returns the numbers of a per-token tensor in the mask of a file, or in all of its cells.
func cellsOf(c *stage.Case, name string, file dump.FileInfo, every bool) []float64 {
	b := c.B
	t := b.Token(name)
	if len(t) != len(b.Mask) {
		return nil
	}
	var x []float64
	for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
		if inside := file.Cols <= 0 || i%b.Cols < file.Cols; b.Mask[i] || every && inside {
			x = append(x, t[i])
		}
	}
	return x
}

// loggedAs predicts a logged number of every file, or of the step. What is logged was computed in float32 from numbers that are dumped.
func loggedAs(r loggedReduction, of func(c *stage.Case, file dump.FileInfo, f int) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p := under(sameInput, c, ch)
	if p == nil || len(p.Want) != len(c.B.Files) || len(p.Want) == 0 {
		return nil
	}
	x := make([]float64, len(p.Want))
	for f, file := range c.B.Files {
		if x[f] = of(c, file, f); math.IsNaN(x[f]) || math.IsInf(x[f], 0) {
			return nil
		}
	}
	if c.B.Meta.ScalarsScope == "optimizer_step" {
		one := r.of(x)
		for f := range x {
			x[f] = one
		}
	}
	q := *p
	q.Want, q.Bound, q.Alt = x, make([]float64, len(x)), nil
	for f, w := range x {
		q.Bound[f] = 0x1p-19 * math.Abs(w)
	}
	return &q
}
