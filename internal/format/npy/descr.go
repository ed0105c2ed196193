package npy

import (
	"fmt"
	"strings"

	"plumbline/internal/format"
)

// elements has the element types that are decoded, by kind and size as in a descr without its byte order.
var elements = map[string]format.DType{
	"b1": format.Bool,
	"i1": format.I8, "i2": format.I16, "i4": format.I32, "i8": format.I64,
	"u1": format.U8, "u2": format.U16, "u4": format.U32, "u8": format.U64,
	"f2": format.F16, "f4": format.F32, "f8": format.F64,
}

// kinds has the types that are refused, by the letter of their kind.
var kinds = map[byte]string{
	'c': "complex", 'U': "unicode string", 'S': "byte string", 'a': "byte string", 'V': "void",
	'M': "datetime64", 'm': "timedelta64",
}

// elementType returns the type that descr names and whether it is stored big-endian, or an error that says what descr
// is instead. note is what a reader of the values should know.
func elementType(descr string, assumeBF16 bool) (d format.DType, big bool, note string, err error) {
	order, kind := byte(0), descr
	if descr != "" && strings.IndexByte("<>|=", descr[0]) >= 0 {
		order, kind = descr[0], descr[1:]
	}
	if d, ok := elements[kind]; ok {
		switch {
		case order == 0:
			return 0, false, "", fmt.Errorf("%q has no byte order, want one of < > | = before it", descr)
		case d.Size() == 1:
			return d, false, "", nil
		case order == '|':
			return 0, false, "", fmt.Errorf("%q gives no byte order to elements of %d bytes", descr, d.Size())
		case order == '=':
			return d, false, fmt.Sprintf("the byte order of %q, native where it was written, is taken to be little-endian", descr), nil
		}
		return d, order == '>', "", nil
	}
	switch {
	case strings.HasPrefix(kind, "O"):
		return 0, false, "", fmt.Errorf("refused: pickle: elements of type %q are pickled Python objects, which NumPy loads "+
			"only with allow_pickle and which are never loaded here", descr)
	case kind == "f16" || kind == "f12":
		return 0, false, "", fmt.Errorf("x86 long double %q is not supported (float16 is \"<f2\")", descr)
	case kind == "V2" && order != '>':
		if !assumeBF16 {
			return 0, false, "", fmt.Errorf("%q is 2 bytes without a type, as bfloat16 is saved; --assume-bf16 reads it so", descr)
		}
		return format.BF16, false, fmt.Sprintf("%q is taken to be bfloat16", descr), nil
	case kind != "" && kinds[kind[0]] != "":
		return 0, false, "", fmt.Errorf("%s elements (%.40q) are not supported", kinds[kind[0]], descr)
	}
	return 0, false, "", fmt.Errorf("unknown element type %.40q", descr)
}
