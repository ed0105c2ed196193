package dump

import (
	"cmp"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// plainForms are the advantages of groups A = (r − c)/(s + ε) of scores alone, without a KL, a bound and a whitening: c is the mean of the group or of its other
// rows, and s nothing, the deviation of the group or that of the batch, with an ε of a release.
func plainForms() (list [][]stage.Change) {
	form := func(words ...string) {
		words = append([]string{"adv.kind", "group", "kl.place", "none", "reward.clip", "none", "eos.rule", "none", "whiten.scope", "none"}, words...)
		list = append(list, changesTo(words...))
	}
	for _, center := range []string{"mean", "loo"} {
		form("adv.center", center, "adv.scale", "none")
	}
	for _, scale := range []string{"group_std", "batch_std"} {
		for _, eps := range []string{"1e-4", "1e-6", "1e-8"} {
			form("adv.center", "mean", "adv.scale", scale, "adv.eps", eps, "adv.ddof", "1", "adv.std_of", "rewards")
		}
	}
	return list
}

// changesTo are the changes to values that words say, each behind its option.
func changesTo(words ...string) (changes []stage.Change) {
	for i := 0; i < len(words); i += 2 {
		v, err := convention.Parse(words[i], words[i+1])
		if err != nil {
			panic("dump: " + err.Error())
		}
		changes = append(changes, stage.Change{Option: words[i], To: v})
	}
	return changes
}

// plain are the failures of a step under each of the plain forms of its advantages that contradicts nothing, those first that leave the least: profiles have them
// beside a KL or a bound of which a run may have none.
func (t *track) plain(u unit, s *session) (list []*stage.Outcome) {
	if t.check.ID != "advantage/group" || s.profile != nil {
		return nil
	}
	away := map[*stage.Outcome]float64{}
	for _, form := range plainForms() {
		if slices.ContainsFunc(form, func(c stage.Change) bool { return isDeclared(u.set, c.Option) && u.set.Value(c.Option) != c.To }) {
			continue
		}
		for _, p := range s.fallbackProfiles() {
			under, _ := convention.FromProfile(p).Over(changed(u.set, form))
			if o := stage.Judge(t.check, u.b, under); o.Pred != nil {
				if o.Verdict == check.Fail {
					list, away[o] = append(list, o), distant(o)
				}
				break
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *stage.Outcome) int { return cmp.Compare(away[a], away[b]) })
	return list
}
