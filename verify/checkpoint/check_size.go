package checkpoint

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"plumbline/verify/check"
)

// WeightSize checks the bytes of an adapter or a model.
var WeightSize = &check.Check[*Input]{
	Name: "weights/size",
	Doc: `the files of weights have as many bytes as the configuration says, and as the user demands

An adapter has width·Σ r·(in + out) bytes over the modules that its targets match, plus headers and modules_to_save, within
2 %. In and out are those of the base where it is known (--base, --model, base_model_name_or_path), else of the tensors.
--size 26MB±15% and --max-size are judged on what lies on the disk. Where nothing is known an adapter of 10 to 100 MB
passes, and 22 to 30 MB are "about 26 MB".`,
	Source: sizes + "; faults A8, P050, P087, P203",
	Fix:    "save the adapter's keys only; verify checkpoint --plan MODEL prints which ranks and targets give which size",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.Folder.Units, sure(func(u *Unit) []check.Result {
			if u.Kind != Adapter && u.Kind != Whole || u.size() <= 0 {
				return nil
			}
			return in.sizeFindings(in.Folder, u)
		}))
	},
}

func (in *Input) sizeFindings(f *Folder, u *Unit) (out []check.Result) {
	have, subject := u.size(), f.at(u)
	whole := ""
	for _, t := range u.tensors(weightsRole) {
		if _, _, kind, _ := loraKey(t.Name); kind == partNone && (u.Kind == Whole || in.restKind(u, t) == "model") {
			whole = t.Name
			break
		}
	}
	blame := func(r check.Result, tooLarge bool) check.Result {
		if tooLarge && whole != "" {
			r.Explanations = []check.Explanation{{Fault: "A8", Title: "the whole model was saved in place of the adapter", Evidence: "key without lora_: " + whole}}
			r.Where = "first key without lora_: " + whole
		}
		return r
	}
	if want := in.Size.Want; want > 0 {
		off := math.Abs(float64(have) - float64(want))
		r := check.Bound(subject, "|bytes − demanded|", off, in.Size.Tolerance*float64(want), 1)
		r.Reason = fmt.Sprintf("%s, demanded %s", megabytes(have), in.Size.Text)
		if r.Verdict == check.Fail {
			r.Explanations = []check.Explanation{{Fault: "SIZE-DEMAND", Title: "an adapter of another rank, other targets or another width"}}
		}
		out = append(out, blame(r, have > want))
	}
	limit := in.MaxSize
	expect, width, ok := in.expectedBytes(u)
	if limit == 0 && u.Kind == Adapter && !ok && (u.Lora == nil || u.Lora.Type == "LORA") {
		limit = DefaultMaxSize
	}
	if limit > 0 {
		r := check.Bound(subject, "bytes", float64(have), float64(limit), 1)
		r.Reason = fmt.Sprintf("%s, at most %s", megabytes(have), megabytes(limit))
		if r.Verdict == check.Fail {
			r.Explanations = []check.Explanation{{Fault: "MAX-SIZE", Title: "larger than an adapter"}}
		}
		out = append(out, blame(r, true))
	}
	switch {
	case ok:
		r := check.Bound(subject, "|bytes − Σ r·(in+out)·width|", math.Abs(float64(have-expect)), 0.02*float64(expect), len(u.pairs))
		r.Reason = fmt.Sprintf("%s, expected %s at %d bytes per number", megabytes(have), megabytes(expect), width)
		if r.Verdict == check.Fail {
			r.Explanations = []check.Explanation{{Fault: "SIZE-EXPECTED", Title: "not what r and the targets give: modules missing or added, or another rank"}}
		}
		out = append(out, blame(r, have > expect))
	case u.Kind == Adapter && u.Lora == nil && have < 10_000_000:
		out = append(out, warn(subject, "SIZE-SMALL", "a small adapter of which nothing is known", "%s, below 10 MB", megabytes(have)))
	}
	for _, c := range u.Containers {
		if u.Kind == Adapter && c.Role == otherRole && c.Size > have {
			out = append(out, fail(subject, "P087", "the whole model was saved beside the adapter", "%s beside it has %s, the adapter %s", base(c.Name), megabytes(c.Size), megabytes(have)))
		}
	}
	if u.Kind == Adapter && have >= 22_000_000 && have <= 30_000_000 {
		out = append(out, note(subject, "%s: about 26 MB", megabytes(have)))
	}
	return out
}

// expectedBytes returns the size that the configuration gives an adapter and the bytes of one number in it. It is not
// known where the rank, or a width, is not.
func (in *Input) expectedBytes(u *Unit) (n int64, width int, ok bool) {
	l := u.Lora
	if u.Kind != Adapter || l == nil || l.Type != "LORA" || l.R < 1 || len(u.pairs) == 0 || l.DoRA || len(l.Parameters) > 0 {
		return 0, 0, false
	}
	match, unknown := l.targeted()
	if unknown != "" {
		return 0, 0, false
	}
	wide := map[string]int{} // by module: an adapter may be stored in more than one type
	for _, p := range u.pairs {
		for _, t := range []*Tensor{p.a, p.b} {
			if t != nil {
				wide[p.module] = max(wide[p.module], t.Array.DType.Size())
			}
		}
		width = max(width, wide[p.module])
	}
	for _, c := range u.Containers {
		if c.Role == weightsRole {
			n += c.Header
		}
	}
	for _, t := range u.rest {
		if in.restKind(u, t) != "model" && in.restKind(u, t) != "embedding" {
			n += t.bytes()
		}
	}
	for _, p := range u.pairs {
		for _, t := range append(p.other, p.bias) {
			if t != nil {
				n += t.bytes()
			}
		}
	}
	add := func(name string, in, out int) {
		w := cmp.Or(wide[name], width)
		n += int64(l.rank(name)) * (int64(in) + int64(out)) * int64(w)
	}
	if m, _ := in.baseModel(u); m != nil {
		for _, x := range adaptable(m) {
			// All-linear leaves out the head, and embeddings are adapted only by name.
			if match(x.Name) && (x.IsLinear() || slices.ContainsFunc(l.Targets, func(t string) bool { return endsWith(x.Name, t) })) ||
				l.tied(x.Name) && slices.ContainsFunc(l.Targets, l.tied) {
				add(x.Name, x.In, x.Out)
			}
		}
		return n, width, width > 0
	}
	for _, p := range u.pairs {
		if p.in() == 0 || p.out() == 0 {
			return 0, 0, false
		}
		if match(p.module) {
			add(p.module, p.in(), p.out())
		}
	}
	return n, width, width > 0
}
