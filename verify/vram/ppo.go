package vram

import (
	"errors"

	"plumbline/internal/arch"
)

// Values are the outputs of a critic: one for each token, with its loss and gradient.
const Values = "values"

// Prefixes of the items of a model beside the policy.
const (
	OfCritic = "critic: "
	OfReward = "reward model: "
)

// Scoring is what reading the whole sequences needs beyond what generation had.
const Scoring = "pass of critic and reward model"

// counts are the numbers of the model of s, with one row for a head that gives a value: no bias, and in place of the logits'.
func (s *Setup) counts() counts {
	c := count(s.Model)
	if !s.valueHead {
		return c
	}
	for _, x := range s.Model.Modules() {
		if x.Role != arch.Head {
			continue
		}
		if !x.Tied {
			c.lines -= float64(s.Model.Vocab)
			c.matrices -= float64(s.Model.Vocab) * float64(s.Model.Hidden)
			c.rest -= float64(s.Model.Vocab) * float64(s.Model.Hidden)
		}
		if x.Bias {
			c.rest -= float64(x.Out)
		}
	}
	c.rest += float64(s.Model.Hidden)
	return c
}

// beside is the Setup of a model beside the policy: the same batch and types. It is quantised as the base is where it has an adapter,
// and else in the type of the weights.
func (s *Setup) beside(m *arch.Model, rank int) Setup {
	next := *s
	next.Model, next.Rank, next.valueHead = m, rank, true
	next.Critic, next.CriticRank, next.Reward, next.Copy, next.VLLM, next.Chunk, next.Head = nil, 0, nil, false, 0, 0, ""
	if rank == 0 {
		next.Targets, next.Int8, next.NF4 = nil, false, false
	}
	return next
}

// companions adds the critic and the reward model of PPO. The critic has weights, gradients, moments and activations as a policy of
// that model, without logits. TRL's PPOTrainer goes back through policy and critic at once; a trainer that updates one after the
// other holds the activations of the larger one alone, which is the lower end. The reward model has weights.
func (p *Plan) companions() {
	s := &p.Setup
	generated := p.Item(KVCache).Bytes + p.Item(PromptPass).Bytes + p.Item(LastLogits).Bytes
	var pass float64
	scores := func(next *Setup) {
		live, _ := next.pass(float64(s.rollout()), float64(s.Seq))
		pass = max(pass, live)
	}
	if s.Critic != nil {
		q := &Plan{Setup: s.beside(s.Critic, s.CriticRank)}
		q.weights()
		q.trained()
		q.autograd()
		for _, i := range q.Items {
			switch i.Name {
			case RolloutCasts:
				continue
			case Activations, LiveBlock, Casts, Values:
				i.Low = max(0, i.Low-p.Item(i.Name).High)
			}
			i.Name = OfCritic + i.Name
			p.Items = append(p.Items, i)
		}
		scores(&q.Setup)
	}
	if s.Reward != nil {
		q := &Plan{Setup: s.beside(s.Reward, 0)}
		q.weights()
		for _, i := range q.Items {
			i.Name = OfReward + i.Name
			p.Items = append(p.Items, i)
		}
		scores(&q.Setup)
	}
	if more := pass - generated; more > 0 {
		p.estimate(Scoring, rollout, more, 0, more+aliveSpread*pass, "an estimate: %d sequences of %d tokens without gradients need %s, less what generation held", s.rollout(), s.Seq, Size(pass))
	}
}

// validateCompanions refuses a critic or a reward model that cannot be.
func (s *Setup) validateCompanions() error {
	switch {
	case s.CriticRank < 0 || s.CriticRank > maxRank:
		return usage("--critic-lora-r %d: want a number from 0 to %d", s.CriticRank, maxRank)
	case s.CriticRank > 0 && s.Critic == nil:
		return usage("--critic-lora-r needs --critic, a model or same")
	case s.CriticRank > 0 && s.Rank == 0:
		return usage("--critic-lora-r %d needs --lora-r and --targets, which are the policy's and the critic's", s.CriticRank)
	case (s.Critic != nil || s.Reward != nil) && s.Stack != HF:
		return usage("--critic and --reward: the plumbline stack is planned without them")
	case s.Critic != nil && s.Head != "":
		return usage("--critic: the head %s is that of GRPO and RLOO, which have no critic", s.Head)
	}
	for _, c := range []struct {
		flag  string
		model *arch.Model
		rank  int
	}{{"--critic", s.Critic, s.CriticRank}, {"--reward", s.Reward, 0}} {
		if c.model == nil {
			continue
		}
		next := s.beside(c.model, c.rank)
		if err := next.Validate(); err != nil {
			if _, ok := errors.AsType[*UnmeasuredError](err); ok {
				return &UnmeasuredError{c.flag + ": " + err.Error()}
			}
			return usage("%s: %v", c.flag, err)
		}
	}
	return nil
}
