package trainer

import (
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/verify/bug"
	"plumbline/verify/convention"
)

// Plant is a bug that can be switched on in the trainer, at the place where somebody once had it.
type Plant struct {
	ID string // of package bug; parametric twins share a plant

	// Outputs are what no longer follows from the dumped inputs: tensors by name, logged numbers as "scalar:NAME". An input
	// that contradicts another input, such as a mask that contradicts the ids, is an output here.
	Outputs []string
	// Needs are the tensors without which the outputs cannot be judged, beside the outputs themselves.
	Needs []string
	// Applies reports whether a program with these options can have the bug. Whether a batch then shows it depends on the
	// batch: see Faulty.
	Applies func(*convention.Set) bool
}

// Bug returns what the registry says of the plant.
func (p *Plant) Bug() *bug.Bug { return bug.MustFind(p.ID) }

// LeftOut is a row of the catalogue whose check reads a dump and that no plant stands for.
type LeftOut struct{ Row, Why string }

// Plants are all plants, in the order of the stages at which they sit.
var Plants = slices.Concat(tokenPlants, logpPlants, klPlants, rewardPlants, advantagePlants, lossPlants, aggregatePlants, metricPlants)

// kinds are the options of bugs that no profile has as it comes, and that users of some set: a loss of another kind, another
// aggregation.
var kinds = map[string]struct {
	option, kind string
	profiles     []string
}{
	"AGG-NO-BATCH":         {"agg.kind", "seq_sum_const", []string{"trl-grpo@1.16"}}, // loss_type dr_grpo
	"CISPO-NOT-DETACHED":   {"loss.kind", "cispo", []string{"verl-grpo@0.9", "trl-grpo@1.16"}},
	"GSPO-ADV-PADDING":     {"loss.kind", "gspo", []string{"verl-grpo@0.9"}},
	"RATIO-GRAD-PER-TOKEN": {"ratio.level", "seq_mean", []string{"trl-grpo@1.16"}}, // importance_sampling_level sequence
	"RATIO-SUM-FOR-MEAN":   {"loss.kind", "gspo", []string{"verl-grpo@0.9"}},
	"RFPP-HOLE-DROPS":      {"adv.kind", "rfpp", []string{"verl-ppo@0.9"}},
}

// Under returns the options of a run of a profile in which p can be: set, or set with the option that p needs and that users of
// the profile change.
func (p *Plant) Under(profile string, set *convention.Set, r *rand.Rand) *convention.Set {
	if k := kinds[p.ID]; slices.Contains(k.profiles, profile) {
		return Vary(set, k.option, k.kind, r)
	}
	return set
}

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
		return !slices.ContainsFunc(cs, func(c condition) bool { return !c(s) })
	}
}

func anyOf(cs ...condition) condition {
	return func(s *convention.Set) bool { return slices.ContainsFunc(cs, func(c condition) bool { return c(s) }) }
}

// tempered holds where the temperature changes log-probs by more than the noise between an engine and a trainer: a bug of the
// temperature within 5 % of 1 moves a token's log-prob by a few hundredths, as other kernels do.
func tempered(s *convention.Set) bool {
	v := s.Value("logp.temperature")
	return v.Kind() == convention.Number && math.Abs(v.Num()-1) >= 0.05
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
