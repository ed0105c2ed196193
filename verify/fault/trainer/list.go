package trainer

import (
	"slices"

	"plumbline/verify/convention"
)

// Plant is a bug that can be switched on in the trainer, at the place where somebody once had it.
type Plant struct {
	ID    string
	Rows  []string // rows of the fault catalogue that it stands for; parametric twins share a plant
	Title string

	// Outputs are what no longer follows from the dumped inputs: tensors by name, logged numbers as "scalar:NAME". An input
	// that contradicts another input, such as a mask that contradicts the ids, is an output here.
	Outputs []string
	// Needs are the tensors without which the outputs cannot be judged, beside the outputs themselves.
	Needs []string
	// Applies reports whether a program with these options can have the bug. Whether a batch then shows it depends on the
	// batch: see Faulty.
	Applies func(*convention.Set) bool
}

// LeftOut is a row of the catalogue whose check reads a dump and that no plant stands for.
type LeftOut struct{ Row, Why string }

// Plants are all plants, in the order of the stages at which they sit.
var Plants = slices.Concat(tokenPlants, logpPlants, klPlants, rewardPlants, advantagePlants, lossPlants, aggregatePlants, metricPlants)

// FindPlant returns the plant of that id, nil if there is none.
func FindPlant(id string) *Plant {
	for i := range Plants {
		if Plants[i].ID == id {
			return &Plants[i]
		}
	}
	return nil
}

type condition = func(*convention.Set) bool

// always holds of every set.
func always(*convention.Set) bool { return true }

// is holds where the option has one of the values, as they are printed.
func is(option string, values ...string) condition {
	return func(s *convention.Set) bool { return slices.Contains(values, s.Value(option).String()) }
}

// positive holds where the option is a number above zero.
func positive(option string) condition {
	return func(s *convention.Set) bool {
		v := s.Value(option)
		return v.Kind() == convention.Number && v.Num() > 0
	}
}

func not(c condition) condition { return func(s *convention.Set) bool { return !c(s) } }

func all(cs ...condition) condition {
	return func(s *convention.Set) bool {
		for _, c := range cs {
			if !c(s) {
				return false
			}
		}
		return true
	}
}

func anyOf(cs ...condition) condition {
	return func(s *convention.Set) bool { return slices.ContainsFunc(cs, func(c condition) bool { return c(s) }) }
}

// Conditions that several plants share.
var (
	masked      = is("mask.tokens", "response")
	gae         = is("adv.kind", "gae")
	group       = is("adv.kind", "group")
	tokenwise   = is("adv.kind", "gae", "rfpp") // advantages come from token rewards
	whitened    = all(is("adv.kind", "gae", "rfpp"), is("whiten.scope", "row", "minibatch", "local_batch", "global"))
	klEnters    = all(positive("kl.beta"), not(is("kl.place", "none", "–", "?")), not(is("kl.kind", "–", "?", "seq_prob")))
	klInLoss    = all(klEnters, is("kl.place", "loss"))
	klInReward  = all(klEnters, is("kl.place", "token_reward"), tokenwise)
	weighted    = is("tis.level", "token", "seq_sum", "seq_geo")
	tokenRatio  = is("ratio.level", "token")
	stored      = is("ratio.old", "stored")
	surrogate   = is("loss.kind", "ppo", "gspo", "luspo") // the clipped surrogate
	usesRatio   = is("loss.kind", "ppo", "gspo", "luspo", "sapo", "gmpo", "cispo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov")
	clipped     = all(surrogate, positive("clip.high"), positive("clip.low"))
	hasValues   = all(gae, is("value.factor", "0.5", "1"))
	valueClip   = all(hasValues, positive("value.clip"))
	entropyTerm = positive("entropy.coef")
	perToken    = is("agg.kind", "token")
	byRow       = is("agg.kind", "seq_mean_token_mean")
	pooled      = is("agg.denominator", "rank", "global") // the denominator spans files
)
