package safetensors

import (
	"slices"

	"plumbline/internal/format"
)

type elementType struct {
	name  string
	bits  uint64
	dtype format.DType // Unknown: listed, but not decoded
}

// dtypes are the element types of the format, in the order in which the reference implementation declares them
// (safetensors/src/tensor.rs): increasing alignment. The order among types of one alignment decides the order of tensors
// in a written file.
var dtypes = []elementType{
	{"BOOL", 8, format.Bool},
	{"F4", 4, format.Unknown},
	{"F6_E2M3", 6, format.Unknown},
	{"F6_E3M2", 6, format.Unknown},
	{"U8", 8, format.U8},
	{"I8", 8, format.I8},
	{"F8_E5M2", 8, format.Unknown},
	{"F8_E4M3", 8, format.Unknown},
	{"F8_E8M0", 8, format.Unknown},
	{"F8_E4M3FNUZ", 8, format.Unknown},
	{"F8_E5M2FNUZ", 8, format.Unknown},
	{"I16", 16, format.I16},
	{"U16", 16, format.U16},
	{"F16", 16, format.F16},
	{"BF16", 16, format.BF16},
	{"I32", 32, format.I32},
	{"U32", 32, format.U32},
	{"F32", 32, format.F32},
	{"C64", 64, format.Unknown},
	{"F64", 64, format.F64},
	{"I64", 64, format.I64},
	{"U64", 64, format.U64},
}

// byName returns the index in dtypes of the type called name, or -1.
func byName(name string) int {
	return slices.IndexFunc(dtypes, func(t elementType) bool { return t.name == name })
}

// byDType returns the index in dtypes of d, or -1.
func byDType(d format.DType) int {
	return slices.IndexFunc(dtypes, func(t elementType) bool { return t.dtype == d && d != format.Unknown })
}
