package fault

// foreignCentre reports whether no estimator subtracts that number of a group. ReMax subtracts the reward of a greedy answer (Li et al. 2024), which may be the first or
// the last of its group, or the best or the worst of them by chance.
func (in *formInputs) foreignCentre(name string) bool {
	switch name {
	case "max", "min":
		return in.manyValued()
	case "first", "last":
		return !in.perhapsGreedy(name == "last")
	}
	return foreignCentres[name]
}

// perhapsGreedy reports whether the first, or the last, answers of the groups may have been sampled greedily. Answers to a prompt choose their first tokens from one
// distribution: where another answer of the group has a likelier one, that of the row was not the likeliest.
func (in *formInputs) perhapsGreedy(last bool) bool {
	const least, clearly = 2, 0.05 // groups; of log-probs, of which those of an engine in 16 bits are off by less
	b := in.c.B
	lp := b.Token("logp_old")
	if lp == nil {
		lp = b.Token("logp_gen")
	}
	if lp == nil {
		return true
	}
	refuted := 0
	for _, g := range in.groups {
		rows := in.scopes["group"][g[0]]
		at := rows[0]
		if last {
			at = rows[len(rows)-1]
		}
		own := firstOf(b, at)
		for _, r := range rows {
			if i := firstOf(b, r); own >= 0 && i >= 0 && i%b.Cols == own%b.Cols && lp[i] > lp[own]+clearly {
				refuted++
				break
			}
		}
	}
	return refuted < least
}

// manyValued reports whether the rewards of several groups have three values and more, so that the largest or the smallest is that of no other answer to the
// prompt: of rewards of two values a greedy answer may have it everywhere.
func (in *formInputs) manyValued() bool {
	const groups, values = 3, 3
	n := 0
	for _, g := range in.groups {
		distinct := map[float64]bool{}
		for _, r := range g {
			distinct[in.r[r]] = true
		}
		if len(distinct) >= values {
			n++
		}
	}
	return n >= groups
}
