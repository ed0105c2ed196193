package vram

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"plumbline/internal/arch"
	"plumbline/verify/check"
)

// Input is what the suite examines.
type Input struct {
	Plan     *Plan
	Limit    Limit        // the zero Limit: none
	Measured *Measurement // nil: none
}

// Suite is the checks of verify vram, in the order of the report.
var Suite = check.Suite[*Input]{PlanUpdate, PlanRollout, DeviceMap, Peak, AsPlanned}

const (
	sourceSizes = "systems.md A.6; performance.md, section 11"
	fixMemory   = "take the advice below, the first lines of which save most"
)

// margin is the part of a limit that a plan should leave free: faults.md, A4.
const margin = 0.95

// PlanUpdate checks the update phase.
var PlanUpdate = &check.Check[*Input]{
	Name: "plan/update",
	Doc: `the update phase fits: the sum of its items is within the limit

base + reference + adapter + gradients + optimiser state + activations + logits + workspace ≤ limit, in bytes. A limit in GB
fails beyond GiB and warns between the two. It warns as well where the sum is over 95 % of the limit, or where the upper
end of the estimates is beyond it.`,
	Source: sourceSizes + "; fault A4",
	Fix:    fixMemory,
	Run:    func(in *Input) ([]check.Result, error) { return in.phase(Update), nil },
	Faults: []check.Fault[*Input]{
		change("A4-CHECKPOINTING", "activations of a batch of 4 kept without checkpointing", "gradient_checkpointing was not set, or model.train() undid it", func(s *Setup) { s.Checkpointing = false }),
		change("A4-BATCH", "the whole batch of 64 in one pass", "per_device_train_batch_size holds what gradient accumulation should split", func(s *Setup) { s.Batch, s.Rollout = 64, 4 }),
		change("A4-INT8", "the base loaded as float32", "from_pretrained without dtype and without quantisation", func(s *Setup) { s.Int8, s.DType = false, "float32" }),
		change("A4-FULL", "every weight trained in place of an adapter", "get_peft_model was not called, or requires_grad was set on all parameters", func(s *Setup) { s.Int8, s.Rank, s.Targets = false, 0, nil }),
		change("A4-REFERENCE", "a second copy of the base as the reference, in float16", "a reference model was loaded although the adapter can be switched off", func(s *Setup) { s.Int8, s.Copy = false, true }),
	},
}

// PlanRollout checks the rollout phase.
var PlanRollout = &check.Check[*Input]{
	Name: "plan/rollout",
	Doc: `the rollout phase fits: the sum of its items is within the limit

base + reference + adapter + optimiser state + KV cache + prompt pass + workspace ≤ limit, in bytes, judged as plan/update.`,
	Source: sourceSizes + "; fault A4",
	Fix:    "generate fewer sequences at a time, or shorter ones; then " + fixMemory,
	Run:    func(in *Input) ([]check.Result, error) { return in.phase(Rollout), nil },
	Faults: []check.Fault[*Input]{
		change("A4-KV", "a cache for 64 sequences at a time", "num_generations times the batch is generated in one call", func(s *Setup) { s.Rollout = 64 }),
	},
}

// change is a fault that plans another configuration.
func change(id, title, cause string, to func(*Setup)) check.Fault[*Input] {
	return check.Fault[*Input]{
		ID: id, Title: title, Cause: cause, Fix: fixMemory, Source: "faults.md, A4", Want: check.Fail,
		Plant: func(_ *rand.Rand, healthy *Input) *Input {
			s := healthy.Plan.Setup
			to(&s)
			return &Input{Plan: New(s), Limit: healthy.Limit}
		},
	}
}

func (in *Input) phase(p Phase) []check.Result {
	t := in.Plan.Total(p)
	r := check.Result{Subject: p.String(), Verdict: check.Note, Reason: fmt.Sprintf("%s, range %.2f to %.2f GB", Size(t.Bytes), t.Low/1e9, t.High/1e9)}
	for _, i := range in.Plan.Items {
		if i.In[p] {
			r.Facts = append(r.Facts, check.Fact{Name: i.Name, Value: i.Bytes / 1e9})
			r.Details = append(r.Details, fmt.Sprintf("%s: %s = %s", i.Name, i.Formula, Size(i.Bytes)))
		}
	}
	if in.Limit.Bytes == 0 {
		return []check.Result{r}
	}
	judged := check.Bound(p.String(), "GB", t.Bytes/1e9, in.Limit.Hard/1e9, len(r.Facts))
	judged.Reason, judged.Facts, judged.Details = r.Reason+fmt.Sprintf("; the limit is %s", in.Limit), r.Facts, r.Details
	if judged.Verdict == check.Pass {
		judged.Limit = in.Limit.Bytes / 1e9
		switch {
		case t.Bytes > in.Limit.Bytes:
			judged.Verdict, judged.Reason = check.Warn, "fits if GB is read as GiB; "+judged.Reason
		case t.Bytes > margin*in.Limit.Bytes:
			judged.Verdict, judged.Reason = check.Warn, "leaves less than 5 % free; "+judged.Reason
		case t.High > in.Limit.Hard:
			judged.Verdict, judged.Reason = check.Warn, "the upper end of the estimates is beyond the limit; "+judged.Reason
		}
	}
	if judged.Verdict == check.Fail || t.Bytes > in.Limit.Bytes {
		judged.Explanations = in.Plan.reasons(in.Limit)
	}
	return []check.Result{judged}
}

// reasons names the choices that cost most, as far as another one fits.
func (p *Plan) reasons(limit Limit) []check.Explanation {
	var out []check.Explanation
	for _, a := range p.Advise(limit) {
		if len(out) == 3 {
			break
		}
		out = append(out, check.Explanation{Fault: a.Fault, Title: a.Flag + ": " + a.What, Evidence: fmt.Sprintf("saves %s", Size(a.Saved)), Lead: a.After.Bytes > limit.Bytes})
	}
	return out
}

// DeviceMap checks that int8 lies on one device.
var DeviceMap = &check.Check[*Input]{
	Name: "plan/device-map",
	Doc: `int8 weights lie on one device: no device_map="auto" over several of them

bitsandbytes int8 with device_map="auto" and more than one visible device hangs in generation.`,
	Source: "systems.md A.0, rows 13, 18 and 19; faults.md, A6",
	Fix:    `CUDA_VISIBLE_DEVICES=0 or device_map={"": 0}; or split the batch over devices with accelerate`,
	Run: func(in *Input) ([]check.Result, error) {
		s := &in.Plan.Setup
		if s.DeviceMap != "auto" {
			return nil, nil
		}
		r := check.Result{Subject: "device_map", Verdict: check.Pass, Reason: "auto, on one visible device", Compared: 1}
		switch {
		case s.Int8 && s.GPUs > 1:
			r.Verdict, r.Reason = check.Fail, fmt.Sprintf(`int8 and device_map="auto" on %d devices`, s.GPUs)
			r.Explanations = []check.Explanation{{Fault: "A6", Title: "generation hangs with bitsandbytes on several devices"}}
		case s.GPUs > 1:
			r.Reason = fmt.Sprintf("auto, on %d devices, without int8; the plan is that of one device", s.GPUs)
		}
		return []check.Result{r}, nil
	},
	Faults: []check.Fault[*Input]{{
		ID: "A6", Title: "int8 over two devices", Cause: `device_map="auto" with two visible devices`, Fix: "CUDA_VISIBLE_DEVICES=0", Source: "faults.md, A6", Want: check.Fail,
		Plant: func(_ *rand.Rand, healthy *Input) *Input {
			s := healthy.Plan.Setup
			s.DeviceMap, s.GPUs = "auto", 2
			return &Input{Plan: New(s), Limit: healthy.Limit}
		},
	}},
}

// Peak checks the measured memory of each device.
var Peak = &check.Check[*Input]{
	Name: "measured/peak",
	Doc: `the measured peak of every device is within the limit

max over the samples of memory.used ≤ limit. A limit in GB fails beyond GiB and warns between the two: 18GB is 17,166 MiB
and 18,432 MiB.`,
	Source: "systems.md A.0, row 23; faults.md, A9",
	Fix:    fixMemory,
	Run: func(in *Input) ([]check.Result, error) {
		if in.Measured == nil || in.Limit.Bytes == 0 {
			return nil, nil
		}
		var out []check.Result
		for _, d := range in.Measured.Devices {
			if d.Peak == 0 {
				out = append(out, in.unused(d))
				continue
			}
			r := check.Bound(d.name(), "GB", d.Peak/1e9, in.Limit.Hard/1e9, in.Measured.Samples)
			r.Reason = fmt.Sprintf("%s; the limit is %s", Size(d.Peak), in.Limit)
			r.Where = fmt.Sprintf("%s, line %d", in.Measured.Path, d.Line)
			if r.Verdict == check.Pass && d.Peak > in.Limit.Bytes {
				r.Verdict, r.Limit, r.Reason = check.Warn, in.Limit.Bytes/1e9, "within the limit if GB is read as GiB: "+r.Reason
			}
			switch r.Verdict {
			case check.Fail:
				r.Explanations = append([]check.Explanation{{Fault: "A9", Title: "more memory in use than the limit"}}, in.explain(d.Peak)...)
			case check.Warn:
				r.Explanations = append([]check.Explanation{{Fault: "A9-GIB", Title: "over the limit by one of the two readings of GB"}}, in.explain(d.Peak)...)
			}
			out = append(out, r)
		}
		return out, nil
	},
	Faults: []check.Fault[*Input]{
		measure("A9", "18 GiB and one MiB in use", check.Fail, func(*Plan) float64 { return 18433 * (1 << 20) }),
		measure("A9-GIB", "between 18 GB and 18 GiB", check.Warn, func(*Plan) float64 { return 17500 * (1 << 20) }),
	},
}

// unused is the result for a device on which nothing was ever in use: the run was on another one, or the sampler began after it. It is
// undetermined where no device shows the run.
func (in *Input) unused(d Device) check.Result {
	verdict := check.Undetermined
	if slices.ContainsFunc(in.Measured.Devices, func(d Device) bool { return d.Peak > 0 }) {
		verdict = check.Note
	}
	return check.Result{Subject: d.name(), Verdict: verdict, Reason: fmt.Sprintf("memory.used is 0 bytes in every sample: the run was not seen (another device, or sampled at another time); %d samples", in.Measured.Samples),
		Where: fmt.Sprintf("%s, line %d", in.Measured.Path, d.Line)}
}

func (d Device) name() string {
	if d.Index == "" {
		return "device"
	}
	return "device " + d.Index
}

func measure(id, title string, want check.Verdict, peak func(*Plan) float64) check.Fault[*Input] {
	return check.Fault[*Input]{
		ID: id, Title: title, Cause: "a configuration that is not the planned one", Fix: fixMemory, Source: "faults.md, A9", Want: want,
		Plant: func(_ *rand.Rand, healthy *Input) *Input {
			return &Input{Plan: healthy.Plan, Limit: healthy.Limit, Measured: &Measurement{Path: "planted", Samples: 100, Devices: []Device{{Index: "0", Peak: peak(healthy.Plan), Line: 2}}}}
		},
	}
}

// AsPlanned compares the measured peak with the plan.
var AsPlanned = &check.Check[*Input]{
	Name: "measured/plan",
	Doc: `the measured peak is what the configuration needs: at most the upper end of the plan

max over devices and samples of memory.used ≤ the upper end of the range of the phase that needs most. Beyond it, the
configurations of common mistakes are planned, and the one that comes nearest is named: int8 not active, a second copy as
the reference, no checkpointing, weights in float32.`,
	Source: sourceSizes + "; faults.md, A9",
	Fix:    "look at what the explanation names: it is set in the configuration and not at work",
	Run: func(in *Input) ([]check.Result, error) {
		if in.Measured == nil {
			return nil, nil
		}
		worst := in.Measured.Devices[0]
		for _, d := range in.Measured.Devices {
			if d.Peak > worst.Peak {
				worst = d
			}
		}
		if worst.Peak == 0 {
			return []check.Result{in.unused(worst)}, nil
		}
		phase, t := in.Plan.Peak()
		r := check.Bound(worst.name(), "GB", worst.Peak/1e9, t.High/1e9, in.Measured.Samples)
		r.Reason = fmt.Sprintf("%s measured, %s planned (%s), range %.2f to %.2f GB", Size(worst.Peak), Size(t.Bytes), phase, t.Low/1e9, t.High/1e9)
		r.Where = fmt.Sprintf("%s, line %d", in.Measured.Path, worst.Line)
		switch {
		case r.Verdict == check.Fail:
			r.Verdict = check.Warn // the plan is an estimate, and other programs may use the device
			r.Explanations = in.explain(worst.Peak)
		case worst.Peak < t.Low:
			r.Verdict = check.Note
			r.Reason += "; less than planned: a peak is easily missed between two samples"
		}
		return []check.Result{r}, nil
	},
	Faults: []check.Fault[*Input]{
		other("INT8-INACTIVE", "int8 is set and not active", func(s *Setup) { s.Int8 = false }),
		other("REFERENCE-COPY", "a second copy of the base serves as the reference", func(s *Setup) { s.Copy = true }),
		other("CHECKPOINTING-INACTIVE", "gradient checkpointing is set and not active", func(s *Setup) { s.Checkpointing = false }),
		other("FLOAT32", "the weights are float32 and not int8", func(s *Setup) { s.Int8, s.DType = false, "float32" }),
	},
}

// mistakes are the configurations that a measured peak is compared with.
var mistakes = []struct {
	id, title string
	to        func(*Setup)
}{
	{"INT8-INACTIVE", "int8 is set and not active: the linear layers have 16 bits", func(s *Setup) { s.Int8 = false }},
	{"REFERENCE-COPY", "a second copy of the base serves as the reference", func(s *Setup) { s.Copy = true }},
	{"CHECKPOINTING-INACTIVE", "gradient checkpointing is not active", func(s *Setup) { s.Checkpointing = false }},
	{"FLOAT32", "the weights are float32", func(s *Setup) { s.Int8, s.DType = false, "float32" }},
}

func other(id, title string, to func(*Setup)) check.Fault[*Input] {
	f := measure(id, title, check.Warn, func(p *Plan) float64 {
		s := p.Setup
		to(&s)
		_, t := New(s).Peak()
		return t.Bytes
	})
	f.Cause = "the trainer overrides the option, or it is set on another object"
	return f
}

// explain names the mistake whose plan comes nearest to the peak, if that is within 5 %.
func (in *Input) explain(peak float64) []check.Explanation {
	var best []check.Explanation
	nearest := 0.05
	for _, m := range mistakes {
		s := in.Plan.Setup
		m.to(&s)
		if s.Validate() != nil {
			continue
		}
		_, t := New(s).Peak()
		if _, is := in.Plan.Peak(); t == is {
			continue // no change
		}
		if apart := math.Abs(peak-t.Bytes) / t.Bytes; apart < nearest {
			nearest = apart
			best = []check.Explanation{{Fault: m.id, Title: m.title, Evidence: fmt.Sprintf("such a run needs %s", Size(t.Bytes)), Lead: true}}
		}
	}
	return best
}

// healthy is an input that passes every check: GPT-J-6B in int8 with an adapter, checkpointing and a limit of 18 GB.
func healthy() *Input {
	s := Setup{Model: arch.Find("gpt-j-6b")}
	s.Stack, s.Int8, s.Rank, s.Targets, s.Batch, s.Seq, s.Checkpointing = HF, true, 16, []string{"q_proj", "v_proj"}, 4, 424, true
	limit, err := ParseLimit("18GB")
	if err != nil {
		panic("vram: " + err.Error())
	}
	p := New(s)
	_, t := p.Peak()
	return &Input{Plan: p, Limit: limit, Measured: &Measurement{Path: "healthy", Samples: 100, Devices: []Device{{Index: "0", Peak: t.Bytes, Line: 2}}}}
}
