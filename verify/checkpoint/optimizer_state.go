package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/pickle"
	"plumbline/verify/check"
)

// twoMoments is the state of one parameter in an optimiser of the Adam family: a mean of gradients m and a mean of their squares v.
type twoMoments struct {
	name  string
	m, v  values
	limit float64 // c of m² ≤ c·v; +Inf if the betas are not known
	steps float64 // 0 if not known
	// what a pass found
	worst           float64 // the largest m²/(c·(v + slack))
	where           int
	zeroM, zeroV    bool
	deadM, elements int64 // numbers with v = 0 and m ≠ 0
}

// smallest is the least positive number in full precision; a device that flushes what is below to zero is off by that much.
const smallest = 0x1p-126

// momentLimit is the largest that m²/v can be after t steps of Adam without bias correction, from gradients of any size. With
// m = (1−β₁)Σβ₁ᵏg and v = (1−β₂)Σβ₂ᵏg² the inequality of Cauchy and Schwarz gives m² ≤ (1−β₁)²/(1−β₂)·Σqᵏ·v with q = β₁²/β₂, the sum
// over t terms.
func momentLimit(beta1, beta2, t float64) float64 {
	if !(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1) || beta2 == 0 && beta1 > 0 {
		return math.Inf(1)
	}
	q := 0.0
	if beta1 > 0 {
		q = beta1 * beta1 / beta2
	}
	sum := t
	if q != 1 {
		sum = (1 - math.Pow(q, t)) / (1 - q)
	}
	return (1 - beta1) * (1 - beta1) / (1 - beta2) * sum
}

// pairsOfMoments returns the states of Adam's family in a file of torch.save: exp_avg and exp_avg_sq, or what bitsandbytes calls state1
// and state2 where it keeps them in float32. Adafactor and others with a factored second moment keep something else under these names.
func (f *Folder) pairsOfMoments(p *Pickle, at float64) []*twoMoments {
	if slices.ContainsFunc(p.Summary.Keys, func(k string) bool { return k == "exp_avg_sq_row" || k == "qmap1" || k == "exp_avg_slow" }) {
		return nil
	}
	storages := map[string]*pickle.Storage{}
	for i := range p.Summary.Storages {
		storages[p.Summary.Storages[i].Key] = &p.Summary.Storages[i]
	}
	beta1, beta2, known := betas(p.Summary)
	r := &reader{tree: f.Tree, name: p.Name, pool: f.pool}
	parts := map[string]*pickle.Tensor{}
	for i := range p.Summary.Tensors {
		parts[p.Summary.Tensors[i].Name] = &p.Summary.Tensors[i]
	}
	counts := map[string]float64{}
	for _, n := range p.Summary.Numbers {
		counts[n.Name] = float64(n.Value)
	}
	lies := func(t *pickle.Tensor) (values, bool) {
		s, d := storages[t.Storage], torchTypes[t.DType]
		if s == nil || s.At == 0 || d == format.Unknown || s.DType != t.DType || !contiguous(t) || t.Len() < 1 {
			return values{}, false
		}
		size := int64(d.Size())
		return values{name: t.Name, data: r, at: s.At + t.Offset*size, n: t.Len() * size, dtype: d}, (t.Offset+t.Len())*size <= s.Bytes
	}
	var list []*twoMoments
	for i := range p.Summary.Tensors {
		t := &p.Summary.Tensors[i]
		for _, names := range [][2]string{{".exp_avg", ".exp_avg_sq"}, {".state1", ".state2"}} {
			prefix, ok := strings.CutSuffix(t.Name, names[0])
			second := parts[prefix+names[1]]
			if !ok || second == nil || !slices.Equal(second.Shape, t.Shape) {
				continue
			}
			x := &twoMoments{name: prefix, limit: math.Inf(1), zeroM: true, zeroV: true}
			var a, b bool
			x.m, a = lies(t)
			x.v, b = lies(second)
			if !a || !b {
				continue
			}
			if s := parts[prefix+".step"]; s != nil {
				if v, ok := lies(s); ok && s.Len() == 1 {
					x.steps = v.first()
				}
			} else {
				x.steps = counts[prefix+".step"]
			}
			if known && x.steps >= 1 {
				x.limit = momentLimit(beta1, beta2, max(x.steps, at)) // a counter of another save is said elsewhere
				x.limit *= 1 + 8*x.roundings(beta2)
			}
			list = append(list, x)
		}
	}
	return list
}

// roundings is how far rounding can move m and v of their own type, relatively: a few units in each of the steps that they remember.
func (x *twoMoments) roundings(beta2 float64) float64 {
	unit, _ := x.v.dtype.Unit()
	if other, _ := x.m.dtype.Unit(); other > unit {
		unit = other
	}
	return unit * min(x.steps, 1/(1-beta2))
}

// first reads one number; 0 if that fails.
func (v *values) first() float64 {
	var b [8]byte
	size := v.dtype.Size()
	if n, _ := v.data.ReadAt(b[:size], v.at); n < size {
		return 0
	}
	x := make([]float64, 1)
	format.Decode(x, b[:size], v.dtype, binary.LittleEndian)
	return x[0]
}

func contiguous(t *pickle.Tensor) bool {
	want := int64(1)
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] != 1 && t.Strides[i] != want {
			return false
		}
		want *= t.Shape[i]
	}
	return true
}

// betas returns the betas of the groups of an optimiser: those that give the largest limit where they differ. More than two betas, or
// none, are of another optimiser.
func betas(s *pickle.Summary) (beta1, beta2 float64, known bool) {
	first, second := map[string]float64{}, map[string]float64{}
	for _, r := range s.Reals {
		group, rest, ok := strings.Cut(strings.TrimPrefix(r.Name, "param_groups."), ".betas.")
		switch {
		case !ok || !strings.HasPrefix(r.Name, "param_groups."):
		case rest == "0":
			first[group] = r.Value
		case rest == "1":
			second[group] = r.Value
		default:
			return 0, 0, false
		}
	}
	most := -1.0
	for group, a := range first {
		if b, ok := second[group]; ok {
			if c := momentLimit(a, b, 1e6); c > most {
				most, beta1, beta2 = c, a, b
			}
		}
	}
	return beta1, beta2, most >= 0
}

// look reads both moments once, side by side.
func (x *twoMoments) look(buf []byte) error {
	sm, sv := int64(x.m.dtype.Size()), int64(x.v.dtype.Size())
	n := x.m.n / sm
	step := int64(piece / 16)
	slack := 4 * smallest * max(x.steps, 1)
	const block = 1024
	var m, v [block]float64
	for from := int64(0); from < n; from += step {
		k := min(step, n-from)
		a, b := buf[:k*sm], buf[piece/2:][:k*sv]
		if got, err := x.m.data.ReadAt(a, x.m.at+from*sm); got < len(a) {
			return fmt.Errorf("%s: reading at byte %d: %w", x.m.name, x.m.at+from*sm, err)
		}
		if got, err := x.v.data.ReadAt(b, x.v.at+from*sv); got < len(b) {
			return fmt.Errorf("%s: reading at byte %d: %w", x.v.name, x.v.at+from*sv, err)
		}
		for at := int64(0); at < k; at += block {
			c := min(block, k-at)
			format.Decode(m[:c], a[at*sm:], x.m.dtype, binary.LittleEndian)
			format.Decode(v[:c], b[at*sv:], x.v.dtype, binary.LittleEndian)
			for i := range c {
				x.elements++
				x.zeroM = x.zeroM && m[i] == 0
				x.zeroV = x.zeroV && v[i] == 0
				square := m[i] * m[i]
				if v[i] == 0 && square > 100*slack {
					x.deadM++
				}
				if over := square / (x.limit * (v[i] + slack)); over > x.worst {
					x.worst, x.where = over, int(from+at+i)
				}
			}
		}
	}
	return nil
}

// adamFindings judges what every optimiser of Adam's family keeps, whatever its gradients were: m² ≤ c·v, and something that is not 0.
func (in *Input) adamFindings(u *Unit) (out []check.Result, err error) {
	f, subject := in.Folder, in.Folder.at(u)
	var list []*twoMoments
	for _, p := range u.Pickles {
		if p.Summary != nil && strings.HasPrefix(path.Base(p.Name), "optim") && len(p.Summary.Problems) == 0 {
			at, _ := stepIn(u)
			list = append(list, f.pairsOfMoments(p, float64(at))...)
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	if err = in.parallel("moments", len(list), piece, func(i int, buf []byte) error { return list[i].look(buf) }); err != nil {
		return nil, err
	}
	var zero, dead, beyond []string
	steps := 0.0
	where := ""
	for _, x := range list {
		steps = max(steps, x.steps)
		switch {
		case x.zeroM && x.zeroV:
			zero = append(zero, x.name)
		case x.deadM > 0:
			dead = append(dead, fmt.Sprintf("%s (%s of %s numbers)", x.name, thousands(x.deadM), thousands(x.elements)))
		case x.worst > 1:
			beyond = append(beyond, x.name)
			if where == "" {
				where = fmt.Sprintf("%s, number %d: m² is %.4g times the largest that %g steps allow, c·v with c = %.4g", x.name, x.where, x.worst, x.steps, x.limit)
			}
		}
	}
	switch {
	case len(zero) == len(list) && steps > 0:
		return []check.Result{fail(subject, "MOMENT-ZERO", "the moments are those of a new optimiser, or no gradient ever reached it", "both moments are 0 in all %s after %g steps", plural(len(list), "parameter"), steps)}, nil
	case len(zero) > 0 && steps > 1:
		out = append(out, warn(subject, "MOMENT-ZERO", "parameters that never had a gradient", "both moments are 0 in %d of %s: %s", len(zero), plural(len(list), "parameter"), several(zero)))
	}
	out = append(out, ifAny(fail, subject, "MOMENT-BOUND", "moments that belong to different parameters, or second moments that were cleared: the step divides by 0", "parameter", "v is 0 where m is not, in %s: %s", dead)...)
	if len(beyond) > 0 {
		r := fail(subject, "MOMENT-BOUND", "moments that belong to different parameters, another order, or another scaling of one of the two", "m² is beyond c·v, which no gradients give, in %d of %s: %s", len(beyond), plural(len(list), "parameter"), several(beyond))
		r.Where = where
		r.Formula = "m² ≤ (1−β₁)²/(1−β₂)·Σ(β₁²/β₂)ᵏ·v"
		out = append(out, r)
	}
	return out, nil
}

// rateFindings holds the learning rates of an optimiser against those of its schedule: lr_scheduler.step() leaves _last_lr in the groups
// (torch@2.15 optim/lr_scheduler.py).
func (u *Unit) rateFindings(subject string) []check.Result {
	rates, last := map[int]float64{}, map[int]float64{}
	for _, p := range u.Pickles {
		b := path.Base(p.Name)
		if p.Summary == nil {
			continue
		}
		for _, r := range p.Summary.Reals {
			var i int
			switch {
			case strings.HasPrefix(b, "optim"):
				if n, _ := fmt.Sscanf(r.Name+" ", "param_groups.%d.lr ", &i); n == 1 && r.Name == fmt.Sprintf("param_groups.%d.lr", i) {
					rates[i] = r.Value
				}
			case strings.HasPrefix(b, "scheduler") || strings.HasPrefix(b, "lr_scheduler"):
				if n, _ := fmt.Sscanf(r.Name, "_last_lr.%d", &i); n == 1 {
					last[i] = r.Value
				}
			}
		}
	}
	if len(rates) == 0 || len(rates) != len(last) {
		return nil
	}
	for i := range len(rates) {
		a, b := rates[i], last[i]
		if !(math.Abs(a-b) <= 0x1p-40*max(math.Abs(a), math.Abs(b))) {
			return []check.Result{fail(subject, "LR-SCHEDULE", "optimiser and schedule of two saves: the learning rate jumps after a resume", "lr of group %d is %.6g in the optimiser, the schedule says %.6g", i, a, b)}
		}
	}
	return []check.Result{pass(subject, len(rates), "%s as the schedule says", plural(len(rates), "learning rate"))}
}

// orderFindings compares the shapes of the moments, by the number of the parameter, with those of the parameters in the order of the
// model: load_state_dict matches the two by their places (torch@2.15 optim/optimizer.py load_state_dict).
func (in *Input) orderFindings(u *Unit, list []moment) []check.Result {
	type placed struct {
		at    int
		shape []int64
	}
	var have []placed
	for _, m := range list {
		var i int
		if n, _ := fmt.Sscanf(m.name, "state.%d.", &i); n != 1 {
			return nil // under names, or in one row
		}
		if len(m.shape) > 1 {
			have = append(have, placed{i, m.shape})
		}
	}
	slices.SortFunc(have, func(a, b placed) int { return a.at - b.at })
	got := make([]string, len(have))
	for i, p := range have {
		got[i] = fmt.Sprint(p.shape)
	}
	orders := in.parameterOrders(u)
	if u.Kind == Adapter && orders == nil {
		if at := u.outOfTurn(got); at >= 0 {
			return []check.Result{fail(in.Folder.at(u), "OPT-ORDER", "the moments are in another order than the parameters: each gets those of another", "the moment of parameter %d is %s, which is not its turn: A and B of each module follow each other, layer by layer and the same in all", have[at].at, got[at])}
		}
		return nil
	}
	if len(orders) == 0 || len(orders[0]) != len(got) {
		return nil
	}
	sorted := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
	if !slices.Equal(sorted(got), sorted(orders[0])) {
		return nil // other shapes: said elsewhere
	}
	first := 0
	for _, o := range orders {
		at := 0
		for at < len(got) && got[at] == o[at] {
			at++
		}
		if at == len(got) {
			return nil
		}
		first = max(first, at)
	}
	return []check.Result{fail(in.Folder.at(u), "OPT-ORDER", "the moments are in another order than the parameters: each gets those of another", "the moment of parameter %d is %s, in the order of the model it is %s", have[first].at, got[first], orders[0][first])}
}

// outOfTurn returns the first of the shapes of moments that breaks what every order of an adapter's parameters has: A and B of a module
// one behind the other, or all A before all B, layer by layer with the same modules in the same order. It returns -1 if none does, or
// if the layers of the adapter differ.
func (u *Unit) outOfTurn(got []string) int {
	if !u.plainPairs() || len(got) != 2*len(u.pairs) {
		return -1
	}
	layers := map[int][]string{}
	for _, p := range u.pairs {
		i, ok := layerOf(p.module)
		if !ok {
			return -1
		}
		layers[i] = append(layers[i], fmt.Sprint(wide64(p.a.Array.Shape))+fmt.Sprint(wide64(p.b.Array.Shape)))
	}
	var want []string
	for _, list := range layers {
		slices.Sort(list)
		if want != nil && !slices.Equal(want, list) {
			return -1
		}
		want = list
	}
	check := func(at func(i int) (a, b int)) int {
		for i := range u.pairs {
			a, b := at(i)
			first, second := at(i % len(want))
			if got[a]+got[b] != got[first]+got[second] || !slices.Contains(want, got[a]+got[b]) {
				return a
			}
		}
		turn := make([]string, len(want))
		for i := range turn {
			a, b := at(i)
			turn[i] = got[a] + got[b]
		}
		if slices.Sort(turn); !slices.Equal(turn, want) {
			return 0
		}
		return -1
	}
	at := check(func(i int) (int, int) { return 2 * i, 2*i + 1 })
	if at < 0 || check(func(i int) (int, int) { return i, len(u.pairs) + i }) < 0 {
		return -1
	}
	return at
}

// plainPairs reports whether the adapter is nothing but A and B of linear layers.
func (u *Unit) plainPairs() bool {
	return len(u.rest) == 0 && len(u.pairs) > 0 && len(u.heads()) == 0 && u.Lora != nil && len(u.Lora.Parameters) == 0 &&
		!slices.ContainsFunc(u.pairs, func(p *pair) bool { return p.a == nil || p.b == nil || p.embed || len(p.other) > 0 })
}

// parameterOrders returns the shapes of the matrices that are trained in the orders in which programs hand them to an optimiser; nil if
// the order of the model is not known.
func (in *Input) parameterOrders(u *Unit) [][]string {
	text := func(t *Tensor) string { return fmt.Sprint(wide64(t.Array.Shape)) }
	if u.Kind == Whole {
		if u.Model == nil || u.Model.Type == "mixtral" || u.State == nil || base(u.State.File) != "trainer_state.json" {
			return nil
		}
		have := byName(u)
		var order []string
		for _, x := range ordered(u.Model) {
			if t := have[x.Name+".weight"]; t != nil && len(t.Array.Shape) > 1 && !(x.Tied && x.Role == arch.Head) {
				order = append(order, text(t))
			}
		}
		if n := len(order); n == 0 || slices.ContainsFunc(u.tensors(headRole), func(t *Tensor) bool { return len(t.Array.Shape) > 1 }) {
			return nil
		}
		return [][]string{order}
	}
	if !u.plainPairs() {
		return nil
	}
	m, _ := in.baseModel(u)
	if m == nil || m.Listed != nil {
		return nil
	}
	place := map[string]int{}
	for i, x := range ordered(m) {
		place[x.Name] = i + 1
	}
	pairs := slices.Clone(u.pairs)
	if slices.ContainsFunc(pairs, func(p *pair) bool { return place[arch.Rooted(m.Type, p.module)] == 0 }) {
		return nil
	}
	slices.SortStableFunc(pairs, func(a, b *pair) int {
		return place[arch.Rooted(m.Type, a.module)] - place[arch.Rooted(m.Type, b.module)]
	})
	var inTurn, allA, allB []string
	for _, p := range pairs {
		inTurn = append(inTurn, text(p.a), text(p.b))
		allA, allB = append(allA, text(p.a)), append(allB, text(p.b))
	}
	return [][]string{inTurn, append(allA, allB...)} // one group, or one for A and one for B (LoRA+)
}

// ordered returns the modules of a model in the order of named_parameters, where that is not the order of the forward pass
// (transformers@5.23.0 models/gptj/modeling_gptj.py GPTJAttention, models/phi3/modeling_phi3.py Phi3Attention).
func ordered(m *arch.Model) []arch.Module {
	list := m.Modules()
	rank := map[arch.Role]int{}
	switch m.Type {
	case "gptj":
		rank = map[arch.Role]int{arch.Key: 1, arch.Value: 2, arch.Query: 3, arch.Output: 4}
	case "phi3":
		rank = map[arch.Role]int{arch.Output: 1, arch.QKV: 2}
	}
	var at []int
	var some []arch.Module
	flush := func() {
		slices.SortStableFunc(some, func(a, b arch.Module) int { return rank[a.Role] - rank[b.Role] })
		for i, x := range some {
			list[at[i]] = x
		}
		at, some = nil, nil
	}
	layer := -1
	for i, x := range slices.Clone(list) {
		if x.Layer != layer {
			flush()
			layer = x.Layer
		}
		if rank[x.Role] > 0 {
			at, some = append(at, i), append(some, x)
		}
	}
	flush()
	return list
}

// aheadFindings looks for entries of the log that are later than the checkpoint.
func (u *Unit) aheadFindings(subject string) []check.Result {
	n, known := stepIn(u)
	if u.State == nil || !known || !u.State.Has(lastLogged) {
		return nil
	}
	last, err := strconv.Atoi(string(u.State.Members[lastLogged].(format.Number)))
	if err != nil || last <= n {
		return nil
	}
	return []check.Result{fail(subject, "LOG-AHEAD", "the log of a later save, or a step that was set back", "%s has entries of step %d, and says that it is of step %d", base(u.State.File), last, n)}
}
