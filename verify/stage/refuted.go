package stage

import (
	"math"
	"slices"
	"strconv"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// What a number that nobody declares could have done to an output that failed has limits, whatever the number is. The functions of this file
// tell failures beyond them.

// OutsideMask reports whether a gradient of the policy loss has cells outside the response mask other than 0, where the mask says what counts: whatever
// the loss of a token is, one that is left out of the sum has no gradient.
func OutsideMask(o *Outcome) bool {
	b := o.Case.B
	if o.Check.ID != "gradient/dlogp" || len(o.Got) != len(b.Mask) || o.Case.Set.Value("mask.tokens").String() != "response" {
		return false
	}
	for i, g := range o.Got {
		if !b.Mask[i] && math.Abs(g) > 0 {
			return true
		}
	}
	return false
}

// NothingOutside reports whether what a check reduces is 0 in every cell outside the mask: entropies or a KL where it is of that term, token losses otherwise, or where
// none were dumped the advantages that they are multiples of. Sums over all cells and over the mask are then the same.
func NothingOutside(ch *Check, b *dump.Batch) bool {
	of := b.Token("token_loss")
	switch {
	case ch.Output == "entropy_loss":
		of = b.Token("entropy")
	case ch.Output == "kl_loss":
		of = b.Token("kl")
	case of == nil:
		of = b.Token("advantages")
	}
	for i, x := range of {
		if !b.Mask[i] && x != 0 {
			return false
		}
	}
	return of != nil
}

// NotALine reports whether the advantages of some file are no line a·y + b of the predicted ones: whitening over a batch of rows, of any scope
// that has whole files and with any ε, multiplies by one number and adds another. Four different numbers are needed to tell, and a distance
// of more than 1e-4 of the largest and of 16 times what they can be off.
func NotALine(o *Outcome) bool {
	b := o.Case.B
	if o.Check.Output != "advantages" || o.Pred == nil || b.Rows == 0 || len(o.Got)%b.Rows != 0 || len(o.Got) != len(o.Pred.Want) {
		return false
	}
	w := len(o.Got) / b.Rows
	for _, f := range b.Files {
		var cells []int
		distinct := map[float64]bool{}
		var n, sx, sy, size, limit float64
		for i := f.Lo * w; i < f.Hi*w; i++ {
			x, y := o.Pred.Want[i], o.Got[i]
			if o.Pred.Judge != nil && !o.Pred.Judge[i] || w > 1 && len(b.Mask) == len(o.Got) && !b.Mask[i] || math.IsNaN(x+y) || math.IsInf(x+y, 0) {
				continue
			}
			cells, distinct[x] = append(cells, i), true
			n, sx, sy, size, limit = n+1, sx+x, sy+y, max(size, math.Abs(y)), max(limit, o.Limit(i))
		}
		if len(distinct) < 4 {
			continue
		}
		var xx, xy float64
		for _, i := range cells {
			dx := o.Pred.Want[i] - sx/n
			xx, xy = xx+float64(dx*dx), xy+float64(dx*(o.Got[i]-sy/n))
		}
		for _, i := range cells {
			if math.Abs(o.Got[i]-sy/n-xy/xx*(o.Pred.Want[i]-sx/n)) > 1e-4*size+16*limit*(1+math.Abs(xy/xx)) {
				return true
			}
		}
	}
	return false
}

// EndedRowsWrong reports whether advantages of a group are wrong of which no row is as long as the longest: a rule for responses without an end
// changes the scores of those that were cut off, all at one length, and so the statistics of their groups, alone.
func EndedRowsWrong(o *Outcome) bool {
	b := o.Case.B
	id := b.Row("group_id")
	if o.Check.ID != "advantage/group" || id == nil || b.Cols == 0 || len(o.Got)%max(b.Rows, 1) != 0 || o.Pred == nil {
		return false
	}
	if v := o.Case.Set.Value("adv.scale"); v.String() == "batch_std" {
		return false
	}
	w := len(o.Got) / b.Rows
	longest := -1
	for r := range b.Rows {
		longest = max(longest, o.Case.last(r))
	}
	full := map[float64]bool{}
	for r := range b.Rows {
		if o.Case.last(r) == longest {
			full[id[r]] = true
		}
	}
	for i, want := range o.Pred.Want {
		if !full[id[i/w]] && (o.Pred.Judge == nil || o.Pred.Judge[i]) && (w == 1 || b.Mask[i]) && !(math.Abs(o.Got[i]-want) <= o.Limit(i)) {
			return true
		}
	}
	return false
}

// strongest are the numbers of which every value puts each element of an output between what it is without the number and what it is with
// the value here: bounds, which act on more elements the tighter they are, shares of what is kept, and what is added to a count so that an
// empty one is no division by zero; none that is known adds more than 1e-3.
var strongest = map[string]string{
	"mean.eps": guard, "agg.len_eps": guard, "ratio.len_eps": guard,
	"ratio.log_clamp": "1e-12", "clip.dual": "1.000000000001", "clip.delta": "1e-12", "loss.off_policy_max": "-1e300", "loss.top_entropy": "1e-12",
	"kl.clamp_in": "1e-12", "kl.clamp_out": "1e-12",
}

// guard is the most that is added to a count.
const guard = "1e-3"

// dropping are the numbers that leave the loss of a token as it is or leave it out: none puts it between.
var dropping = map[string]bool{"loss.off_policy_max": true, "loss.top_entropy": true}

// OutOfReach reports whether no values of the named numbers give the output that failed. An element that is monotone in each number while
// the others stay has its extremes where each is absent or strongest; an element beyond all of these, by 16 times what it can be off, and
// 1e-3 of itself, refutes them together. Of a sum over tokens that holds only for what is added to counts, whose effect is proportional
// to it.
//
// A bound of the log-ratio of tokens changes those alone that are beyond it. It is below the smallest of those that are wrong, which holds all others
// as far; or it is not, and then the others have made that one wrong.
func OutOfReach(o *Outcome, names []string) bool {
	const clamp = "ratio.log_clamp"
	if len(names) == 0 {
		return false
	}
	if !slices.Contains(names, clamp) || !byToken(o) {
		return len(unreached(o, names, nil)) > 0
	}
	wrong := func(i int) bool { // and not by as little as what is allowed for
		return o.judges(i) && !(math.Abs(o.Got[i]-o.Pred.Want[i]) <= 16*o.Limit(i)+1e-3*math.Abs(o.Pred.Want[i]))
	}
	at, least := -1, math.Inf(1)
	c := o.Case
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	for i := range o.Got {
		if d := math.Abs(lp[i] - old[i]); wrong(i) && d < least {
			at, least = i, d
		}
	}
	if at < 0 || least == 0 {
		return len(unreached(o, names, nil)) > 0
	}
	below := unreached(o, names, map[string]string{clamp: strconv.FormatFloat(least, 'g', -1, 64)})
	if !slices.ContainsFunc(below, wrong) { // what is right needs no bound
		return false
	}
	rest := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == clamp })
	return slices.Contains(unreached(o, rest, nil), at)
}

// byToken reports whether an output has an element for every token, which depends on the ratio of no other.
func byToken(o *Outcome) bool {
	if o.Case == nil || o.Pred == nil || o.Check.ID != "token_loss/policy" {
		return false
	}
	b, set := o.Case.B, o.Case.Set
	return len(o.Got) == len(b.Mask) && len(b.Token("logp_new")) == len(o.Got) && len(b.Token("logp_old")) == len(o.Got) &&
		set.Value("ratio.level").String() == "token" && slices.Contains([]string{"ppo", "sapo", "cispo"}, set.Value("loss.kind").String())
}

// judges reports whether element i is compared.
func (o *Outcome) judges(i int) bool {
	b := o.Case.B
	perToken := len(o.Got) == b.Rows*b.Cols && b.Cols > 1
	return (o.Pred.Judge == nil || o.Pred.Judge[i]) && (!perToken || len(b.Mask) != len(o.Got) || b.Mask[i])
}

// unreached returns the elements that no values of the named numbers give. Where weak has a value of one, it is no weaker than that.
func unreached(o *Outcome, names []string, weak map[string]string) (beyond []int) {
	const many = 6 // of which there are 64 corners
	if o.Pred == nil || len(names) > many || o.Half() || o.Case == nil {
		return nil
	}
	b := o.Case.B
	perToken := len(o.Got) == b.Rows*b.Cols && b.Cols > 1
	for _, name := range names {
		if _, ok := strongest[name]; !ok || !perToken && strongest[name] != guard {
			return nil
		}
	}
	left := func(string) bool { return false } // of the loss of a token, which is 0 then
	if o.Check.ID == "token_loss/policy" {
		left = func(name string) bool { return dropping[name] }
	}
	zero := slices.ContainsFunc(names, left)
	names = slices.DeleteFunc(slices.Clone(names), left)
	low, high := make([]float64, len(o.Got)), make([]float64, len(o.Got))
	for corner := range 1 << len(names) {
		set := o.Case.Set
		for k, name := range names {
			text := strongest[name]
			if corner>>k&1 == 0 {
				if text = "none"; strongest[name] == guard {
					text = "0"
				}
				if w, ok := weak[name]; ok {
					text = w
				}
			}
			v, err := convention.Parse(name, text)
			if err != nil {
				return nil
			}
			set = set.With(name, v, "reach")
		}
		p := JudgeAs(o.Check, b, set, o.Arithmetic)
		if p.Pred == nil || p.Tally == nil || len(p.Pred.Want) != len(o.Got) {
			return nil
		}
		for i, want := range p.Pred.Want {
			limit := 16*p.Limit(i) + 1e-3*math.Abs(want)
			if math.IsNaN(want) || corner > 0 && math.IsNaN(low[i]) {
				low[i] = math.NaN() // anything may stand there
				continue
			}
			if corner == 0 || want-limit < low[i] {
				low[i] = want - limit
			}
			if corner == 0 || want+limit > high[i] {
				high[i] = want + limit
			}
		}
	}
	for i, got := range o.Got {
		if o.judges(i) && (got < low[i] || got > high[i]) && !(zero && got == 0) {
			beyond = append(beyond, i)
		}
	}
	return beyond
}
