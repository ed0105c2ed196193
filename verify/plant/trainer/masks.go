package trainer

import "slices"

// masks builds ids and masks.
func (r *run[F]) masks() {
	n := r.cells()
	r.truth = make([]bool, n)
	s := r.width + r.cols
	r.inputIDs, r.attended = slices.Repeat([]int{r.pad}, r.rows*s), make([]bool, r.rows*s)
	for i := range r.rows {
		p := r.prompt[i]
		for t := range r.cols {
			cell := i*r.cols + t
			own := t < r.length[i]
			r.inputIDs[i*s+r.width+t], r.attended[i*s+r.width+t] = r.ids[cell], own
			r.truth[cell] = own && !r.hole[cell] && !r.dropped[i]
		}
		for k, id := range p {
			r.inputIDs[i*s+r.width-len(p)+k], r.attended[i*s+r.width-len(p)+k] = id, true
		}
		r.promptOf = append(r.promptOf, len(p))
	}
	if r.plant == "GROUP-IDENTICAL" {
		r.repeat(s)
	}
	r.mask = slices.Clone(r.truth)
	for i := range r.rows {
		if r.dropped[i] && r.plant == "MASK-TRUNCATED-KEPT" {
			for t := range r.length[i] {
				r.mask[i*r.cols+t] = !r.hole[i*r.cols+t]
			}
		}
		row, end := r.mask[i*r.cols:(i+1)*r.cols], r.length[i]
		if r.dropped[i] {
			continue
		}
		switch r.plant {
		case "MASK-NO-EOS":
			if r.eosAt[i] >= 0 && end > 1 {
				row[r.eosAt[i]] = false
			}
		case "MASK-PAST-EOS":
			if r.eosAt[i] >= 0 && end < r.cols {
				row[end] = true
			}
		case "MASK-SHIFT":
			if end < r.cols {
				copy(row[1:], slices.Clone(row))
				row[0] = false
			}
		case "MASK-ATTENTION":
			for t := range end {
				row[t] = true
			}
		case "MASK-EMPTY":
			clear(row)
		}
	}
	switch r.plant {
	case "IDS-RETOKENISED":
		for i := range r.rows {
			if t := r.length[i] / 2; r.length[i] > 2 && i%2 == 0 {
				at := i*s + r.width + t
				if r.inputIDs[at]++; r.inputIDs[at] >= r.vocab {
					r.inputIDs[at] = 2
				}
			}
		}
	case "PROMPT-TRUNCATED":
		for i, p := range r.prompt {
			if len(p) > 2 {
				at := i*s + r.width - len(p)
				r.inputIDs[at], r.attended[at] = r.pad, false
			}
		}
	}
	r.setLossMask()
}

// repeat makes the completions of a group equal to its first one. What belongs to a row goes with it, since log-probs, scores
// and all else follow from its tokens.
func (r *run[F]) repeat(s int) {
	first := map[int]int{}
	for i, g := range r.group {
		if _, seen := first[g]; !seen {
			first[g] = i
		}
		r.source(i, first[g], s)
	}
}

// source gives row to all that row from has.
func (r *run[F]) source(to, from, s int) {
	if to == from {
		return
	}
	w := *r.world // the world of the healthy run stays as it is
	w.ids, w.length, w.eosAt = slices.Clone(w.ids), slices.Clone(w.length), slices.Clone(w.eosAt)
	w.scores, w.twin = slices.Clone(w.scores), slices.Clone(w.twin)
	w.hole, w.dropped = slices.Clone(w.hole), slices.Clone(w.dropped)
	if w.twin == nil {
		for i := range w.rows {
			w.twin = append(w.twin, i)
		}
	}
	copy(w.ids[to*w.cols:(to+1)*w.cols], w.ids[from*w.cols:])
	copy(w.hole[to*w.cols:(to+1)*w.cols], w.hole[from*w.cols:])
	w.length[to], w.eosAt[to], w.dropped[to], w.twin[to] = w.length[from], w.eosAt[from], w.dropped[from], w.twin[from]
	copy(w.scores[to*w.functions:(to+1)*w.functions], w.scores[from*w.functions:])
	r.world = &w
	copy(r.truth[to*w.cols:(to+1)*w.cols], r.truth[from*w.cols:(from+1)*w.cols])
	copy(r.inputIDs[to*s:(to+1)*s], r.inputIDs[from*s:(from+1)*s])
	copy(r.attended[to*s:(to+1)*s], r.attended[from*s:(from+1)*s])
}

// setLossMask says which cells the policy loss takes.
func (r *run[F]) setLossMask() {
	r.lossMask = slices.Clone(r.mask)
	if r.o.maskAll {
		for i := range r.lossMask {
			r.lossMask[i] = true
		}
	}
	for i := range r.rows {
		row := r.lossMask[i*r.cols : (i+1)*r.cols]
		_, last := ends(row)
		switch r.plant {
		case "LOSS-MASK-SHIFT":
			copy(row[1:], slices.Clone(row))
			row[0] = false
		case "LOSS-MASK-TOOL":
			for t := 0; t < r.length[i] && !r.dropped[i]; t++ {
				row[t] = true
			}
		case "LOSS-MASK-PADS":
			for t := range row {
				row[t] = true
			}
		case "LOSS-MASK-P1":
			if last >= 0 && last+1 < r.cols {
				row[last+1] = true
			}
		case "LOSS-FIRST-COLUMN":
			clear(row[1:])
		}
	}
}

// ends returns the first and the last true cell of a row, −1 if there is none.
func ends(row []bool) (first, last int) {
	first, last = slices.Index(row, true), -1
	for t, m := range row {
		if m {
			last = t
		}
	}
	return first, last
}

// count returns the number of true cells.
func count(mask []bool) int {
	n := 0
	for _, m := range mask {
		if m {
			n++
		}
	}
	return n
}
