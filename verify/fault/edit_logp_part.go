package fault

import (
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// partShift is a log-prob that is that of the column by columns on, in a part of each row: an offset that is counted up once too often.
type partShift struct {
	id, title string
	by        int
	from      func(b *dump.Batch, row int) int // the first column that is moved, Cols for none
}

// partShifts returns the shifts of parts that a failure may be: from the first column that is wrong on, and behind the first tokens of tools.
func partShifts(o *stage.Outcome) (list []partShift) {
	b := o.Case.B
	if len(o.Got) != len(b.Mask) || b.Cols < 2 {
		return nil
	}
	first := b.Cols
	for i, m := range b.Mask {
		if m && (o.Pred.Judge == nil || o.Pred.Judge[i]) && !(math.Abs(o.Got[i]-o.Pred.Want[i]) <= o.Limit(i)) {
			first = min(first, i%b.Cols)
		}
	}
	for _, way := range []struct {
		id, words string
		by        int
	}{{"LOGP-SHIFT-LATE", "the token before", -1}, {"LOGP-SHIFT", "the token behind", 1}} {
		if first > 0 && first < b.Cols {
			list = append(list, partShift{way.id, fmt.Sprintf("from column %d on the log-prob is that of %s", first, way.words), way.by, func(*dump.Batch, int) int { return first }})
		}
		list = append(list, partShift{way.id, "behind the first tokens that are not the policy's own the log-prob is that of " + way.words, way.by, behindHole})
	}
	return list
}

// behindHole returns the column of the first token of a row that follows on a masked one, Cols where there is none.
func behindHole(b *dump.Batch, row int) int {
	seen := false
	for t := range b.Cols {
		switch m := b.Mask[row*b.Cols+t]; {
		case m && seen && !b.Mask[row*b.Cols+t-1]:
			return t
		case m:
			seen = true
		}
	}
	return b.Cols
}

// predict predicts the log-probs of logits that are all there, a part of them those of another column, which may be none of the policy's.
func (f partShift) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	p, z, t := rightOfLogits(c, ch)
	if p == nil {
		return nil
	}
	q := altered(p)
	q.Judge = make([]bool, len(p.Want))
	for r := range b.Rows {
		from := f.from(b, r)
		for col := range b.Cols {
			i := r*b.Cols + col
			if q.Judge[i] = b.Mask[i] && (p.Judge == nil || p.Judge[i]); !q.Judge[i] || col < from {
				continue
			}
			at := col + f.by
			id, ok := b.TokenID(r, at)
			if !ok || at < 0 || at >= b.Cols || id < 0 || id >= z.Width {
				q.Judge[i] = false
				continue
			}
			x := z.Data[(r*b.Cols+at)*z.Width : (r*b.Cols+at+1)*z.Width]
			lse := logSumExp(x, 1/t)
			q.Want[i] = x[id]/t - lse
			q.Bound[i] = 4*p.Bound[i]*max(1, math.Abs(q.Want[i])) + 64*c.Unit*(math.Abs(lse)+math.Abs(x[id]/t)+math.Abs(q.Want[i]))
			if math.IsNaN(q.Want[i]) || math.IsInf(q.Want[i], 0) {
				q.Judge[i] = false
			}
		}
	}
	return q
}
