package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// StoredTypes checks what the weights are stored in.
var StoredTypes = &check.Check[*Input]{
	Name: "weights/type",
	Doc: `weights are floating point, or integers with the scales that make weights of them

Packed 4-bit codes (uint8) and int8 codes are no weights: a folder that holds them without a quantization_config and without
scales was exported from a quantised model as if it were a dense one. Weights in wider whole numbers need a quantization_config; biases and
the vectors of norms, which no quantiser touches, are floating point with one, too. Types that differ from dtype in config.json, or from one
layer to the next, are a warning.`,
	Source: "V28; bitsandbytes int8 tensors; faults P041, P152; TRL#3466, TRL#4973",
	Fix:    "dequantise before saving (model.dequantize()), or save with the quantiser's own method and its configuration",
	Run: func(in *Input) ([]check.Result, error) {
		return each(in.judged(), sure(func(p place) []check.Result {
			list := p.u.tensors(weightsRole)
			if len(list) == 0 || p.u.Kind != Adapter && p.u.Kind != Whole {
				return nil
			}
			return p.f.typeFindings(p.u, list)
		}))
	},
}

func (f *Folder) typeFindings(u *Unit, list []*Tensor) (out []check.Result) {
	subject := f.at(u)
	scales := map[string]bool{}
	for _, t := range list {
		for _, end := range []string{".SCB", ".absmax", ".weight_scale", ".weight_scale_inv", ".scales"} {
			if name, ok := strings.CutSuffix(t.Name, end); ok {
				scales[name] = true
				scales[name+".weight"] = true
			}
		}
	}
	var packed, codes, whole []string
	counts := map[string]int{}
	for _, t := range list {
		a := t.Array
		if vector := strings.HasSuffix(t.Name, ".bias") || strings.HasSuffix(t.Name, ".weight") && len(a.Shape) < 2; vector &&
			a.DType.Size() > 0 && !a.DType.Float() && !ignorable(t.Name) {
			whole = append(whole, fmt.Sprintf("%s in %s", t.Name, a.Type))
			continue
		}
		if !strings.HasSuffix(t.Name, "weight") && !strings.Contains(t.Name, ".lora_") {
			continue
		}
		counts[a.Type]++
		if len(a.Shape) < 2 || ignorable(t.Name) || scales[t.Name] || scales[strings.TrimSuffix(t.Name, ".weight")] {
			continue
		}
		switch a.DType {
		case format.U8:
			packed = append(packed, fmt.Sprintf("%s %s", t.Name, a.ShapeString()))
		case format.I8:
			codes = append(codes, fmt.Sprintf("%s %s", t.Name, a.ShapeString()))
		default:
			if size := a.DType.Size(); size > 0 && !a.DType.Float() && (u.Kind == Adapter || u.Config == nil || u.Config.Quantization == nil) {
				whole = append(whole, fmt.Sprintf("%s in %s", t.Name, a.Type))
			}
		}
	}
	out = append(out, ifAny(fail, subject, "INT-WEIGHTS", "the bits of floating-point numbers declared as whole numbers, or packed codes without quantization_config", "weight", "%s stored as whole numbers: %s", whole)...)
	out = append(out, ifAny(fail, subject, "P041", "packed 4-bit codes exported as weights", "weight", "%s stored as uint8 without scales: %s", packed)...)
	out = append(out, ifAny(fail, subject, "INT8-NO-SCALE", "int8 codes exported as weights: their scales were dropped", "weight", "%s stored as int8 without SCB: %s", codes)...)
	if scaled := scaledCodes(list); len(scaled) > 0 && u.Kind == Whole && u.Config != nil && u.Config.Quantization == nil {
		out = append(out, fail(subject, "QUANT-CONFIG", "quantization_config was dropped: loaders take the codes as weights", "%s stored as int8 with SCB, and config.json has no quantization_config: %s", plural(len(scaled), "weight"), several(scaled)))
	}
	if len(out) > 0 {
		return out
	}
	types := ""
	for _, n := range []string{"F64", "F32", "BF16", "F16", "I8", "U8", "F8_E4M3", "F8_E5M2"} {
		if counts[n] > 0 {
			types += fmt.Sprintf(", %d %s", counts[n], n)
		}
	}
	if types == "" {
		return out
	}
	out = append(out, pass(subject, len(list), "weights in%s", strings.TrimPrefix(types, ",")))
	if mixed := mixedTypes(list); len(mixed) > 0 && (u.Config == nil || u.Config.Quantization == nil) {
		out = append(out, warn(subject, "MIXED-TYPES", "put together from two saves, or cast in part", "weights of one name in two types: %s", several(mixed)))
	}
	if u.Kind == Whole && u.Config != nil && u.Config.Quantization == nil && u.Config.DType != "" {
		want := map[string]string{"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}[u.Config.DType]
		if want != "" && counts[want] == 0 && counts["I8"]+counts["U8"] == 0 {
			out = append(out, warn(subject, "DTYPE-CONFIG", "config.json of another save: loading with dtype=\"auto\" converts the weights", "config.json says %s, the weights are%s", u.Config.DType, strings.TrimPrefix(types, ",")))
		}
	}
	if u.Kind == Adapter && counts["F16"]+counts["BF16"] > 0 {
		out = append(out, note(subject, "stored in 16 bits: PEFT loads it as float32 (autocast_adapter_dtype), so a resume goes on from rounded numbers"))
	}
	return out
}

// scaledCodes returns the int8 weights that have the absmax of their rows beside them.
func scaledCodes(list []*Tensor) (names []string) {
	scb := map[string]bool{}
	for _, t := range list {
		if name, ok := strings.CutSuffix(t.Name, ".SCB"); ok {
			scb[name+".weight"] = true
		}
	}
	for _, t := range list {
		if t.Array.DType == format.I8 && scb[t.Name] {
			names = append(names, t.Name)
		}
	}
	return names
}

// mixedTypes returns the names, with # for the number of the layer, of weights that are stored in one type in one layer and in
// another in the next. Norms or routers in a wider type than the rest are not among them.
func mixedTypes(list []*Tensor) (mixed []string) {
	types := map[string][]string{}
	for _, t := range list {
		if !t.Array.DType.Float() || ignorable(t.Name) {
			continue
		}
		form := numberless(t.Name)
		if !slices.Contains(types[form], t.Array.Type) {
			types[form] = append(types[form], t.Array.Type)
		}
	}
	for form, list := range types {
		if len(list) > 1 {
			slices.Sort(list)
			mixed = append(mixed, fmt.Sprintf("%s in %s", form, strings.Join(list, " and ")))
		}
	}
	slices.Sort(mixed)
	return mixed
}
