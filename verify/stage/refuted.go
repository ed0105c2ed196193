package stage

import "math"

// What a number that nobody declares could have done to an output that failed has limits, whatever the number is. The functions of this file
// tell failures beyond them.

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
