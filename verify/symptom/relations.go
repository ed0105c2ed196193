package symptom

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format/runlog"
)

// family is the minimum, mean and maximum of one quantity; −1 where one is missing.
type family struct {
	low, mid, high int
	bad            *point
	name           string
	n              int64
	first          string
}

// findFamilies pairs names that differ in mean, min and max.
func (w *Watch) findFamilies() (list []family) {
	at := map[string]int{}
	for i, s := range w.series {
		if s != nil {
			at[s.name] = i
		}
	}
	for i, s := range w.series {
		if s == nil {
			continue
		}
		for _, form := range [][3]string{{"/mean", "/min", "/max"}, {"_mean", "_min", "_max"}, {"/mean_", "/min_", "/max_"}} {
			k := strings.LastIndex(s.name, form[0])
			if k < 0 {
				continue
			}
			f := family{low: -1, mid: i, high: -1, name: s.name}
			if j, ok := at[s.name[:k]+form[1]+s.name[k+len(form[0]):]]; ok {
				f.low = j
			}
			if j, ok := at[s.name[:k]+form[2]+s.name[k+len(form[0]):]]; ok {
				f.high = j
			}
			if f.low >= 0 || f.high >= 0 {
				for _, old := range w.families {
					if old.name == f.name {
						f.bad, f.n, f.first = old.bad, old.n, old.first
					}
				}
				list = append(list, f)
			}
			break
		}
	}
	return list
}

// sum is a number that others add up to, each with a coefficient.
type sum struct {
	total  string
	terms  []string
	weight []float64 // nil: 1 each; NaN: not known
	rule   string
	bad    *point
	got    float64
	want   float64
	n, off int64
	digits int         // the most significant digits of any
	fine   float64     // the finest rounding of any number of it
	fits   [][]float64 // rows of terms, the total and its rounding, to tell unknown coefficients by
	beyond bool        // the total is outside of what any share of each term gives
	loose  bool        // its numbers may have been bfloat16
}

// sums are those that a log has the names for.
type sums struct {
	list []*sum
	at   map[string]int
}

// findSums finds the sums of a program. What was counted before names were added is kept.
func (w *Watch) findSums() sums {
	s := sums{at: map[string]int{}}
	for i, x := range w.series {
		if x != nil {
			s.at[x.name] = i
		}
	}
	add := func(rule, total string, weight []float64, terms ...string) {
		for _, n := range append([]string{total}, terms...) {
			if _, ok := s.at[n]; !ok {
				return
			}
		}
		for _, old := range w.sums.list {
			if old.total == total && len(old.terms) == len(terms) {
				s.list = append(s.list, old)
				return
			}
		}
		s.list = append(s.list, &sum{total: total, terms: terms, weight: weight, rule: rule, loose: rule == "REWARD-SUM" && weight == nil})
	}
	add("LOSS-SUM", "loss", nil, "main", "critic")
	switch w.Program {
	case "shielded":
		add("LOSS-SUM", "loss", nil, "loss_pg", "loss_kl")
	case "grpo":
		if _, printed := s.at["main"]; !printed {
			add("LOSS-SUM", "loss", nil, "pg_loss", "kl_penalty")
		}
	case "ppo":
		weight := []float64{1, math.NaN(), math.NaN()}
		_, value := w.option("vf_coeff")
		if _, entropy := w.option("entropy_coeff"); value && entropy {
			weight = []float64{1, w.optionNumber(.1, "vf_coeff"), w.optionNumber(.01, "entropy_coeff")}
		}
		add("LOSS-SUM", "loss/total", weight, "loss/policy", "loss/value", "loss/entropy")
	}
	for _, at := range []string{"", "train/"} {
		add("REWARD-SUM", at+"objective/rlhf_reward", nil, at+"objective/scores", at+"objective/non_score_reward")
	}
	var terms []string
	for name := range s.at {
		if short := strings.TrimPrefix(name, "train/"); strings.HasPrefix(short, "rewards/") && (strings.HasSuffix(short, "/mean") || strings.Count(short, "/") == 1) {
			terms = append(terms, name)
		}
	}
	total := "reward"
	if _, ok := s.at[total]; !ok {
		total = "train/reward"
	}
	if len(terms) > 1 && len(terms) <= 16 {
		slices.SortFunc(terms, func(a, b string) int { return s.at[a] - s.at[b] }) // as TRL logs them, in the order of its functions
		var weight []float64
		if text, ok := w.option("reward_weights"); ok {
			weight = numbersOf(text)
		}
		if len(weight) != len(terms) {
			weight = make([]float64, len(terms))
			for i := range weight {
				weight[i] = math.NaN()
			}
		}
		add("REWARD-SUM", total, weight, terms...)
	}
	return s
}

// relations judges what the numbers of one row say together.
func (w *Watch) relations(row *runlog.Row) {
	if w.Program == "arc" {
		w.arcRow(row)
	}
	w.pair(row)
	if len(w.families)+len(w.sums.list) > 0 {
		w.together(row)
	}
	if row.Form == runlog.Iter {
		w.printed = true
		if v, ok := w.value(row, "time"); ok {
			w.endIteration(row.Line, v/1e3)
		}
	}
	if w.filtered != nil {
		return
	}
	for _, names := range lossAndNorm {
		if loss, ok := w.value(row, names[0]); ok && loss == 0 {
			if g, ok := w.value(row, names[1]); ok && math.IsNaN(g) {
				w.filtered = &point{step: w.step, line: row.Line}
				return
			}
		}
	}
}

var lossAndNorm = [...][2]string{{"loss", "grad_norm"}, {"train/loss", "train/grad_norm"}}

// value returns a number of the row by its name.
func (w *Watch) value(row *runlog.Row, name string) (float64, bool) {
	for i := range row.Fields {
		if f := &row.Fields[i]; w.names[f.Name] == name && !f.Missing {
			return f.Value, true
		}
	}
	return 0, false
}

const bfloat16Sum = 0x1p-7 // of a number that is rounded to bfloat16 by 2⁻⁹ of it, and again in the sum and its mean

const relative = 0x1p-18 // of a mean of float32: 2⁻²⁴ for each of some tens of roundings

func (w *Watch) together(row *runlog.Row) {
	field := func(i int) *runlog.Field {
		for k := range row.Fields {
			if row.Fields[k].Name == i {
				return &row.Fields[k]
			}
		}
		return nil
	}
	finite := func(f *runlog.Field) bool { return f != nil && !math.IsNaN(f.Value) && !math.IsInf(f.Value, 0) }
	for i := range w.families {
		f := &w.families[i]
		mid := field(f.mid)
		if !finite(mid) {
			continue
		}
		f.n++
		for _, other := range []struct {
			at   int
			sign float64
		}{{f.low, 1}, {f.high, -1}} {
			if other.at < 0 || f.bad != nil {
				continue
			}
			x := field(other.at)
			if !finite(x) {
				continue
			}
			if d := other.sign * (x.Value - mid.Value); d > roundings(row, mid, x)+relative*(math.Abs(mid.Value)+math.Abs(x.Value)) {
				f.bad = &point{step: w.step, line: row.Line, mean: mid.Value, min: x.Value}
				f.first = w.names[other.at]
			}
		}
	}
	for _, s := range w.sums.list {
		total := field(w.sums.at[s.total])
		if !finite(total) {
			continue
		}
		rounding := func(f *runlog.Field) float64 {
			if !row.Form.Shortest() {
				return f.Half
			}
			return s.shortest(f, s.n == 0 && f == total)
		}
		relative := relative
		if s.loose {
			relative = bfloat16Sum
		}
		room, want, whole, unknown := rounding(total)+relative*math.Abs(total.Value), 0.0, true, false
		line := make([]float64, 0, len(s.terms)+1)
		for k, name := range s.terms {
			f := field(w.sums.at[name])
			if !finite(f) {
				whole = false
				break
			}
			c := 1.0
			if s.weight != nil {
				c = s.weight[k]
			}
			if math.IsNaN(c) {
				unknown, c = true, 1
			}
			v := f.Value
			if name == "loss/entropy" && !math.IsNaN(s.weight[k]) { // logged as H or as −H
				v = -math.Abs(v)
			}
			want += c * v
			room += math.Abs(c) * (rounding(f) + relative*math.Abs(f.Value))
			line = append(line, f.Value)
		}
		if !whole {
			continue
		}
		s.n++
		if (unknown || s.rule == "REWARD-SUM") && len(s.fits) < 256 {
			s.fits = append(s.fits, append(line, total.Value, room))
		}
		if unknown {
			continue
		}
		if !(math.Abs(total.Value-want) <= room) {
			s.beyond = s.beyond || s.weight != nil && beyondShares(line[:len(s.terms)], s.weight, total.Value, room)
			if s.off++; s.bad == nil {
				s.bad, s.got, s.want = &point{step: w.step, line: row.Line}, total.Value, want
			}
		}
	}
}

// beyondShares reports whether no shares f of [0, 1] make total = Σ f·w·m. TRL's reward functions may leave completions out (None): each
// mean is over those that were scored, the total over all, so that a term counts by the share that its function scored.
func beyondShares(means, weight []float64, total, room float64) bool {
	low, high := 0., 0.
	for i, m := range means {
		low, high = low+math.Min(0, weight[i]*m), high+math.Max(0, weight[i]*m)
	}
	return !(total >= low-room && total <= high+room)
}

// shortest is how far a number may be rounded that was written without the zeros at its end: by the finest place of the sum's numbers so
// far, as after round(x, 4), or by the most digits, as after "%.4g", whichever is coarser. first resets what was seen.
func (s *sum) shortest(f *runlog.Field, first bool) float64 {
	if first || f.Half < s.fine {
		s.fine = f.Half
	}
	if first {
		s.digits = 0
	}
	if f.Value == 0 || f.Half <= 0 {
		return s.fine
	}
	place := math.Floor(math.Log10(math.Abs(f.Value)))
	s.digits = max(s.digits, int(math.Round(place-math.Log10(2*f.Half)))+1)
	return max(s.fine, .5*math.Pow(10, place+1-float64(s.digits)))
}

// settle tells whether constant coefficients explain a sum whose coefficients are not known: those that are NaN in weight. It
// returns the coefficients, and how far the sum is from them at worst in units of its rounding.
func (s *sum) settle(weight []float64) (c []float64, worst float64, ok bool) {
	free := []int(nil)
	for i, v := range weight {
		if math.IsNaN(v) {
			free = append(free, i)
		}
	}
	if len(free) == 0 || len(s.fits) < len(free)+2 {
		return nil, 0, false
	}
	k := len(s.terms)
	n := len(free)
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
	}
	for _, f := range s.fits {
		y := f[k]
		for i, v := range weight {
			if !math.IsNaN(v) {
				y -= v * f[i]
			}
		}
		for i, p := range free {
			for j, q := range free {
				a[i][j] += f[p] * f[q]
			}
			a[i][n] += f[p] * y
		}
	}
	for i := range n { // Gauss with pivots
		p := i
		for j := i; j < n; j++ {
			if math.Abs(a[j][i]) > math.Abs(a[p][i]) {
				p = j
			}
		}
		a[i], a[p] = a[p], a[i]
		if math.Abs(a[i][i]) < 1e-12 {
			return nil, 0, false
		}
		for j := range n {
			if j != i {
				q := a[j][i] / a[i][i]
				for l := i; l <= n; l++ {
					a[j][l] -= q * a[i][l]
				}
			}
		}
	}
	c = append([]float64{}, weight...)
	for i, p := range free {
		c[p] = a[i][n] / a[i][i]
	}
	for _, f := range s.fits {
		want, size := 0.0, 0.0
		for i := range c {
			want += c[i] * f[i]
			size += math.Abs(c[i] * f[i])
		}
		worst = max(worst, math.Abs(f[k]-want)/(f[k+1]+1e-5*size+1e-9))
	}
	return c, worst, true
}

// arcRow makes the loss without reward, curriculum and weight of hard cells.
func (w *Watch) arcRow(row *runlog.Row) {
	get := func(names ...string) (float64, bool) {
		for _, n := range names {
			if v, ok := w.value(row, n); ok {
				return v, true
			}
		}
		return 0, false
	}
	loss, ok1 := get("loss", "Loss")
	reward, ok2 := get("reward", "Reward")
	mask, ok3 := get("mask_ratio", "Mask_ratio")
	if !ok1 || !ok2 || !ok3 {
		return
	}
	weight := .3
	if w.epoch < 1 {
		weight = .6
	}
	if e, ok := w.value(row, "epoch"); ok && row.Raw {
		if weight = .3; e < 1 {
			weight = .6
		}
	}
	if c, ok := w.value(row, "curriculum"); ok && c > 0 {
		weight = c
	}
	hard := .5 + .5*mask
	if h, ok := w.value(row, "hard_cell"); ok && h > 0 {
		hard = h
	}
	s := w.named["\x00efe"]
	if s == nil {
		s = &series{name: "L_efe", what: quantity["efe"], known: &Name{Program: "arc", Name: "L_efe", Quantity: "efe"}}
		w.named["\x00efe"] = s
	}
	s.add(w.step, row.Line, (loss+.3*reward)/(.7*weight*hard), false, 0, true, true)
	m := w.named["\x00mask"]
	if m == nil {
		m = &series{name: "loss by mask_ratio"}
		w.named["\x00mask"] = m
	}
	if mask > 0 {
		m.add(w.step, row.Line, (loss+.3*reward)/(.7*weight*mask), false, 0, true, true)
	}
}

// numbersOf reads the numbers of a list: "[1.0, 0.5]".
func numbersOf(text string) (list []float64) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("[](), ", r) }) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil
		}
		list = append(list, v)
	}
	return list
}

// roundings are how far two numbers may be rounded together: by the finer one's digits where both have as many as they need.
func roundings(row *runlog.Row, a, b *runlog.Field) float64 {
	if row.Form.Shortest() {
		return 2 * min(a.Half, b.Half)
	}
	return a.Half + b.Half
}
