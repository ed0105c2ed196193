//go:build unix

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
)

// stBytes returns a safetensors file with the header as it stands and size bytes of data.
func stBytes(header string, size int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, size)...)
}

// stLength returns a safetensors file that declares a header of n bytes and has size bytes.
func stLength(n uint64, size int) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, n), make([]byte, size)...)
}

// bytesOf returns the entry of a vector of bytes.
func bytesOf(begin, end int) string {
	return fmt.Sprintf(`{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}`, end-begin, begin, end)
}

// safetensorsRows are files that end in .safetensors and whose tensors make no sense.
func safetensorsRows() []hostile {
	one := bytesOf(0, 1)
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"Q":{"dtype":"%s","shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	rows := []hostile{
		// The twenty-one of formats.md, section 19, and the row behind them.
		{name: "N = 2^63", data: stLength(1<<63, 100), says: "header length 9223372036854775808, want at most 100000000"},
		{name: "N = 100,000,001", data: stLength(100_000_001, 100), says: "header length 100000001, want at most 100000000"},
		{name: "N = 2^64 - 1", data: stLength(1<<64-1, 100), says: "header length 18446744073709551615"},
		{name: "N beyond the file", data: stLength(101, 100), says: "header length 101, but only 100 bytes follow"},
		{name: "7 bytes", data: make([]byte, 7), says: "has 7 bytes"},
		{name: "header not UTF-8", data: stBytes("{\"a\xff\":"+one+"}", 1), says: "invalid UTF-8"},
		{name: "header not an object", data: stBytes("["+one+"]", 1), says: "found an array, want an object"},
		{name: "name twice", data: stBytes(`{"Q":`+one+`,"Q":`+one+`}`, 1), says: `duplicate key "Q"`},
		{name: "key twice", data: stBytes(`{"Q":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1), says: `duplicate key "dtype"`},
		{name: "key in the wrong case", data: stBytes(`{"Q":{"dtype":"U8","shape":[1],"DATA_OFFSETS":[0,1]}}`, 1), says: `unknown key "DATA_OFFSETS"`},
		{name: "overlap", data: stBytes(`{"a":`+bytesOf(0, 4)+`,"b":`+bytesOf(3, 8)+`}`, 8), says: "overlaps tensor"},
		{name: "hole", data: stBytes(`{"a":`+bytesOf(0, 4)+`,"b":`+bytesOf(5, 8)+`}`, 8), says: "leaves a hole"},
		{name: "first offset not 0", data: stBytes(`{"Q":`+bytesOf(1, 4)+`}`, 4), says: "begins at byte 1 of the data, want 0"},
		{name: "end before begin", data: stBytes(entry("U8", "[4]", "[4,0]"), 4), says: "the end lies before the begin"},
		{name: "negative offset", data: stBytes(entry("U8", "[1]", "[-1,0]"), 1), says: "offset -1 is negative"},
		{name: "file too short", data: stBytes(entry("U8", "[4]", "[0,4]"), 3), says: "beyond the 3 bytes of data"},
		{name: "file too long", data: stBytes(entry("U8", "[4]", "[0,4]"), 6), says: "2 bytes follow the last tensor"},
		{name: "shape [2, 2^64 - 2]", data: stBytes(entry("U8", "[2,18446744073709551614]", "[0,1]"), 1), says: "does not fit an int64"},
		{name: "empty alias under one name", data: stBytes(`{"b":`+one+`,"a":`+bytesOf(0, 0)+`,"a":`+bytesOf(1, 1)+`}`, 1), says: `duplicate key "a"`},
		{name: "F4 with an odd count", data: stBytes(entry("F4", "[3]", "[0,2]"), 2), says: "do not end on a byte"},
		{name: "unknown dtype", data: stBytes(entry("F128", "[1]", "[0,16]"), 16), says: `unknown dtype "F128"`},
		{name: "depth 10,001", data: stBytes(strings.Repeat(`{"Q":`, 10_001), 0), says: "tensor \"Q\": unknown key \"Q\""},
		{name: "metadata not a string", data: stBytes(`{"__metadata__":{"step":1}}`, 0), says: "found a number, want a string"},
		{name: "float offset", data: stBytes(entry("U8", "[1]", "[0,1.0]"), 1), says: "found 1.0, want an integer"},

		{name: "N = 0", data: stLength(0, 100), says: "found the end of the data, want an object"},
		{name: "header cut", data: stBytes(`{"Q":{"dtype":"U8","sha`, 0), says: "string without an end"},
		{name: "text behind the header", data: stBytes(`{"Q":`+one+`}{}`, 1), says: "after the end of the JSON document"},
		{name: "name of 1025 bytes", data: stBytes(`{"`+strings.Repeat("x", 1025)+`":`+one+`}`, 1), says: "the name has 1025 bytes"},
		{name: "escape sequences in a name", data: stBytes(`{"\u001b[31m":`+one+`}`, 1), says: "holds a control character"},
		{name: "C1 control in a name", data: stBytes("{\"\u009b31m\":"+one+"}", 1), says: "holds a control character"},
		{name: "unknown key with escape sequences", data: stBytes(`{"Q":{"\u001b[2J":1}}`, 0), says: "unknown key"},
		{name: "empty name", data: stBytes(`{"":`+one+`}`, 1), says: "the name is empty"},
		{name: "lone surrogate", data: stBytes(`{"a\ud800":`+one+`}`, 1), says: "lone surrogate"},
		{name: "shape overflows", data: stBytes(entry("U8", "[4294967296,4294967296]", "[0,0]"), 0), says: "the number of elements overflows"},
		{name: "bits overflow", data: stBytes(entry("F64", "[288230376151711744]", "[0,0]"), 0), says: "the number of bits overflows"},
		{name: "nine dimensions", data: stBytes(entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1), says: "more than 8 dimensions"},
		{name: "no tensors", data: stBytes("{}", 0), args: "--basis FILE", says: "holds no arrays"},

		// Files that are read, and judged or asked about.
		{name: "8-bit floats", data: stBytes(entry("F8_E4M3", "[64,4]", "[0,256]"), 256), code: check.ExitFail, says: "stored as F8_E4M3"},
		{name: "8-bit floats as a gradient", data: stBytes(entry("F8_E4M3", "[64]", "[0,64]"), 64), args: "--basis q.npy --grad FILE", code: check.ExitFail, says: "is stored as F8_E4M3"},
		{name: "no elements", data: stBytes(entry("F32", "[64,0]", "[0,0]"), 0), code: check.ExitFail, says: "the basis is empty"},
		{name: "no name", data: stBytes(`{"a\u202eb":`+one+`,"it's \"b\"":`+bytesOf(1, 2)+`}`, 2), args: "--basis FILE", code: check.ExitUsage, says: "holds 2 arrays"},
		{name: "another name", data: stBytes(`{"a\u202eb":`+one+`}`, 1), args: "--basis FILE:Q", code: check.ExitUsage, says: `has no tensor "Q"`},
		{name: "a hundred names", data: named(100, func(i int) string { return fmt.Sprintf("t%d", i) }, []int{2}, 1), code: check.ExitUsage, says: "holds 100 arrays"},
	}
	for i := range rows {
		rows[i].path = "f.safetensors"
	}
	return rows
}

// tensorFile returns a safetensors file.
func tensorFile(metadata map[string]string, tensors ...safetensors.Tensor) []byte {
	header := map[string]any{}
	if metadata != nil {
		header["__metadata__"] = metadata
	}
	var data []byte
	for _, t := range tensors {
		begin := len(data)
		data = format.Encode(data, t.Data, t.DType)
		header[t.Name] = map[string]any{"dtype": map[format.DType]string{format.F16: "F16", format.F32: "F32", format.F64: "F64", format.I64: "I64"}[t.DType],
			"shape": append([]int{}, t.Shape...), "data_offsets": []int{begin, len(data)}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return append(stBytes(string(text), 0), data...)
}

// named returns a safetensors file of n tensors in float32 with the given shape, whose first element is v and the others 0.
func named(n int, name func(int) string, shape []int, v float32) []byte {
	elems := 1
	for _, d := range shape {
		elems *= d
	}
	dims, _ := json.Marshal(shape)
	var header strings.Builder
	for i := range n {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&header, `%s"%s":{"dtype":"F32","shape":%s,"data_offsets":[%d,%d]}`, sep, name(i), dims, 4*elems*i, 4*elems*(i+1))
	}
	b := stBytes(header.String()+"}", 4*elems*n)
	for i := len(b) - 4*elems*n; i < len(b); i += 4 * elems {
		binary.LittleEndian.PutUint32(b[i:], math.Float32bits(v))
	}
	return b
}

// metadataRows are healthy bases with metadata that are not.
func metadataRows() []hostile {
	q := safetensors.Tensor{Name: "Q", DType: format.F64, Shape: []int{64, 4}, Data: cosines(64, 4)}
	order := func(text string) []byte { return tensorFile(map[string]string{"order": text}, q) }
	kind := func(text string) []byte { return tensorFile(map[string]string{"kind": text}, q) }
	const withGrad = "--basis FILE --grad g.npy"
	rows := []hostile{
		{name: "kind of escape sequences", data: kind("\x1b[31m\u202e\u009b"), code: accepted, says: "is neither flat nor side"},
		{name: "kind of 2 MB", data: kind(strings.Repeat("\x01", 400_000)), code: accepted, says: "is neither flat nor side"},
		{name: "kind side, and the vector is flat", data: kind("side"), args: withGrad, code: check.ExitFail, says: "the reading is side"},
		{name: "order no JSON", data: order("w,64"), args: withGrad, says: "metadata order"},
		{name: "order not a list of lists", data: order(`["w",64]`), args: withGrad, says: "metadata order"},
		{name: "order negative", data: order(`[["w",-1]]`), args: withGrad, says: "metadata order"},
		{name: "order of 2^63", data: order(`[["w",9223372036854775808]]`), args: withGrad, says: "does not fit an int64"},
		{name: "order a float", data: order(`[["w",64.0]]`), args: withGrad, says: "want an integer"},
		{name: "order with three parts", data: order(`[["w",64,0]]`), args: withGrad, says: "metadata order"},
		{name: "order 10,001 deep", data: order(strings.Repeat("[", 10_001)), args: withGrad, says: "metadata order"},
		{name: "order 10,001 deep behind the length", data: order(`[["w",64,` + strings.Repeat("[", 10_001)), args: withGrad, says: "nested deeper than 64"},
		{name: "order not UTF-8", data: stBytes(`{"__metadata__":{"order":"[[\"`+"\xff"+`\",64]]"}}`, 0), args: withGrad, says: "invalid UTF-8"},
		{name: "order with a name of 1 MB", data: order(`[["` + strings.Repeat("x", 1<<20) + `",64]]`), args: withGrad, says: "a name of 1048576 bytes"},
		{name: "order of 2^63 - 1", data: order(`[["w",9223372036854775807]]`), args: withGrad, code: check.ExitFail, says: "vectors/fit"},
		{name: "order with escape sequences", data: order(`[["\u001b[31m\u202e",31],["w",32]]`), args: withGrad, code: check.ExitFail, says: "vectors/fit"},
		{name: "order of another model", data: order(`[["w",32],["v",31]]`), args: withGrad, code: check.ExitFail, says: "vectors/fit"},
		{name: "order of the vector itself", data: order(`[["w",32],["v",32]]`), args: withGrad, code: accepted, says: "nothing failed"},
	}
	for i := range rows {
		rows[i].path = "m.safetensors"
	}
	return rows
}

// vectorRows are gradients and updates.
func vectorRows() []hostile {
	f64 := func(v float64) []byte {
		x := make([]float64, 64)
		for i := range x {
			x[i] = v * float64(1+i)
		}
		return numpyFile(1, "<f8", false, "(64,)", format.Encode(nil, x, format.F64))
	}
	t := func(i int) string { return fmt.Sprintf("t%d", i) }
	wide := func(d int) []byte {
		return numpyFile(1, "<f2", false, fmt.Sprintf("(%d, 1500)", d), make([]byte, 2*1500*d))
	}
	empty := numpyFile(1, "<f4", false, "(64, 0)", nil)
	const grad, update = "--basis q.npy --grad FILE", "--basis q.npy --update FILE"
	return []hostile{
		{name: "without elements", path: "v.npy", data: numpyFile(1, "<f4", false, "(0,)", nil), args: grad, code: check.ExitFail, says: "vectors/fit"},
		{name: "64 × 0", path: "v.npy", data: empty, args: grad, code: check.ExitFail, says: "v.npy"},
		{name: "64 × 0, update", path: "v.npy", data: empty, args: update, code: check.ExitFail, says: "v.npy"},
		{name: "64 × 0, projected", path: "v.npy", data: empty, args: grad + " --projected FILE", code: check.ExitFail, says: "v.npy"},
		{name: "one number", path: "v.npy", data: numpyFile(1, "<f4", false, "()", make([]byte, 4)), args: grad, code: check.ExitFail, says: "vectors/fit"},
		{name: "squares overflow", path: "v.npy", data: f64(1e200), args: grad, code: check.ExitUndetermined, says: "the norm overflows"},
		{name: "squares overflow, update", path: "v.npy", data: f64(1e200), args: update, code: check.ExitUndetermined, says: "the norm overflows"},
		{name: "squares underflow", path: "v.npy", data: f64(1e-200), args: grad, code: check.ExitUndetermined, says: "gradient/component"},
		{name: "squares underflow, update", path: "v.npy", data: f64(1e-200), args: update, code: check.ExitUndetermined, says: "update/component"},
		{name: "NaN", path: "v.npy", data: f64(math.NaN()), args: grad, code: check.ExitFail, says: "element 0 is NaN"},
		{name: "NaN, projected", path: "v.npy", data: f64(math.NaN()), args: "--basis q.npy --grad g.npy --projected FILE", code: check.ExitFail, says: "element 0 is NaN"},
		{name: "infinity", path: "v.npy", data: f64(math.Inf(1)), args: grad, code: check.ExitFail, says: "element 0 is +Inf"},
		{name: "a step counter beside the gradient", path: "v.safetensors", args: grad, code: accepted, says: "nothing failed",
			data: tensorFile(nil, safetensors.Tensor{Name: "w", DType: format.F64, Shape: []int{64}, Data: columnOf(cosines(64, 5), 5, 4)}, safetensors.Tensor{Name: "step", DType: format.I64, Shape: []int{1}, Data: []float64{7}})},
		{name: "names that turn the line round", path: "v.safetensors", data: named(2, func(i int) string { return fmt.Sprintf(`\u202e\u2066\"it's%d`, i) }, []int{64}, 1), args: grad, code: check.ExitFail, says: "it's1"},
		{name: "3,000 tensors that fail", path: "v.safetensors", data: named(3000, t, []int{64}, 1), args: grad, code: check.ExitFail, says: "gradient/component"},
		{name: "3,000 tensors of another length", path: "v.safetensors", data: named(3000, t, []int{3}, 1), args: grad, code: check.ExitFail, says: "9000 elements together"},
		{name: "a basis of more columns than rows", path: "v.npy", data: wide(3), args: "--basis FILE --grad FILE", code: check.ExitFail, says: "K ≥ d"},
		{name: "a transposed basis, K the rank of the adapter", path: "v.npy", args: "--basis FILE --adapter lora --init lora", code: accepted, says: "read as its transpose",
			data: numpyFile(1, "<f8", false, "(8, 64)", format.Encode(nil, transposed(cosines(64, 8), 8), format.F64))},
	}
}

// transposed returns the transpose of a matrix of cols columns.
func transposed(x []float64, cols int) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i%cols*(len(x)/cols)+i/cols] = v
	}
	return out
}

const loraName = "base_model.model.m.q_proj.lora_"

// loraFolder writes an adapter of rank 8 whose lora_B is b, 64 × 8, and further tensors.
func loraFolder(dir string, b []float64, more ...safetensors.Tensor) error {
	a := make([]float64, 8*16)
	for i := range a {
		a[i] = 0.01
	}
	return adapterFolder(dir, tensorFile(map[string]string{"format": "pt"}, append([]safetensors.Tensor{
		{Name: loraName + "A.weight", DType: format.F32, Shape: []int{8, 16}, Data: a},
		{Name: loraName + "B.weight", DType: format.F32, Shape: []int{64, 8}, Data: b},
	}, more...)...))
}

// adapterFolder writes a folder with the given adapter_model.safetensors.
func adapterFolder(dir string, file []byte) error {
	return errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), file, 0o666))
}

// adapterRows are folders that are given as an adapter.
func adapterRows() []hostile {
	const args = "--basis q.npy --adapter FILE"
	const withInit = args + " --init lora"
	link := func(target string) func(string) error {
		return func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o777), os.Symlink(target, filepath.Join(dir, "adapter_model.safetensors")))
		}
	}
	content := func(file []byte) func(string) error {
		return func(dir string) error { return adapterFolder(dir, file) }
	}
	empty := func(name string, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: format.F32, Shape: shape}
	}
	still := make([]float64, 64*8)
	rows := []hostile{
		{name: "pickle only", args: args, says: "refused: a pickle", make: func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, "adapter_model.bin"), []byte("\x80\x02."), 0o666))
		}},
		{name: "NaN weight", args: withInit, code: check.ExitFail, says: "is NaN", make: func(dir string) error {
			b := make([]float64, 64*8)
			b[77] = math.NaN()
			return loraFolder(dir, b)
		}},
		{name: "NaN weight, no init", args: args, code: check.ExitFail, says: "is NaN", make: func(dir string) error {
			b := make([]float64, 64*8)
			b[77] = math.NaN()
			return loraFolder(dir, b)
		}},
		{name: "link out of the folder", args: args, says: "leads out of the folder", make: link("../lora/adapter_model.safetensors")},
		{name: "absolute link", args: args, says: "leads out of the folder", make: link("/etc/passwd")},
		{name: "link to a device", args: args, says: "leads out of the folder", make: link("/dev/zero")},
		{name: "link to itself", args: args, says: "leads back to itself", make: link("adapter_model.safetensors")},
		{name: "link to nothing", args: args, says: "or nowhere", make: link("nothing")},
		{name: "link to the folder", args: args, says: "is a directory", make: link(".")},
		{name: "FIFO", args: args, says: "is a FIFO", make: func(dir string) error {
			return errors.Join(os.MkdirAll(dir, 0o777), syscall.Mkfifo(filepath.Join(dir, "adapter_model.safetensors"), 0o666))
		}},
		{name: "folder in the folder", args: args, says: "is a directory", make: func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, "adapter_model.safetensors"), 0o777)
		}},
		{name: "empty file", args: args, says: "has 0 bytes", make: content(nil)},
		{name: "header cut", args: args, says: "string without an end", make: content(stBytes(`{"a`, 0))},
		{name: "no tensors", args: args, code: check.ExitFail, says: "it holds no tensors", make: content(tensorFile(map[string]string{"format": "pt"}))},
		{name: "no tensors, no init", args: withInit, code: check.ExitFail, says: "but not in", make: content(stBytes("{}", 0))},
		{name: "only tensors without elements", args: args, code: check.ExitFail, says: "0 elements", make: content(tensorFile(nil, empty(loraName+"A.weight", 0), empty(loraName+"B.weight", 0)))},
		{name: "lora_B of 64 × 0", args: args + " --init FILE", code: check.ExitFail, says: "have no elements", make: content(tensorFile(nil, empty(loraName+"A.weight", 0, 16), empty(loraName+"B.weight", 64, 0)))},
		{name: "a tensor without elements beside others", args: args + " --init FILE", code: check.ExitFail, says: "score", make: func(dir string) error {
			return loraFolder(dir, still, empty("base_model.model.score.lora_B.weight", 0))
		}},
		{name: "tensors that init lacks", args: withInit, code: check.ExitFail, says: "but not in lora", make: func(dir string) error {
			return loraFolder(dir, still, empty("it's lora_A", 0))
		}},
		{name: "no such folder", args: "--basis q.npy --adapter FILE/nowhere", code: check.ExitUsage, says: "nowhere", make: func(dir string) error { return os.MkdirAll(dir, 0o777) }},
		{name: "folder without adapter", args: args, code: check.ExitUsage, says: "adapter_model.safetensors", make: func(dir string) error { return os.MkdirAll(dir, 0o777) }},
	}
	for i := range rows {
		rows[i].path = fmt.Sprintf("adapter%d", i)
	}
	return rows
}

// generalRows are names of what is no file of any format.
func generalRows() []hostile {
	fifo := func(path string) error { return syscall.Mkfifo(path, 0o666) }
	folder := func(path string) error { return os.MkdirAll(path, 0o777) }
	link := func(target string) func(string) error {
		return func(path string) error { return os.Symlink(target, path) }
	}
	return []hostile{
		{name: "FIFO", path: "fifo.npy", make: fifo, says: "is a FIFO"},
		{name: "FIFO without an ending", path: "fifo", make: fifo, says: "is a FIFO"},
		{name: "FIFO as an archive", path: "fifo.npz", make: fifo, says: "is a FIFO"},
		{name: "FIFO as a baseline", path: "fifo.json", make: fifo, args: "--basis q.npy --baseline FILE", says: "is a FIFO"},
		{name: "directory", path: "folder.safetensors", make: folder, says: "is a directory"},
		{name: "/dev/zero", path: "zero.npy", make: link("/dev/zero"), says: "is a device"},
		{name: "/dev/zero without an ending", path: "zero", make: link("/dev/zero"), says: "is a device"},
		{name: "empty", path: "e.npy", says: "is empty"},
		{name: "empty", path: "e.safetensors", says: "has 0 bytes"},
		{name: "empty", path: "e", says: "not one of .npy, .npz and .safetensors"},
		{name: "text", path: "e.csv", data: []byte("0.5,0.5\n"), says: "not one of .npy, .npz and .safetensors"},
		{name: "escape sequences in a file name", path: "\x1b[31m\u202e\u009b.npy", says: "is empty"},
		{name: "a quote in a file name", path: "it's.npy", says: "it's.npy"},
		{name: "pickle of protocol 2", path: "p2.pt", data: []byte("\x80\x02}q\x00."), says: "a pickle of PyTorch"},
		{name: "pickle of protocol 4", path: "p4.pt", data: []byte("\x80\x04\x95\x00\x00\x00\x00\x00\x00"), says: "pickle"},
		{name: "checkpoint of PyTorch", path: "zip.pt", data: npzBytes(member{name: "archive/data.pkl"}), says: "a pickle of PyTorch"},
		{name: "checkpoint of another ending", path: "zip.ckpt", data: npzBytes(member{name: "archive/data.pkl"}), says: "refused: pickle"},
		{name: "a command in a file name", path: "$(id).pt", data: []byte("\x80\x02}q\x00."), says: "a pickle of PyTorch"},
		{name: "header of 640 bytes without an ending", path: "w640", code: accepted, says: "nothing failed",
			data: padded(tensorFile(nil, safetensors.Tensor{Name: "Q", DType: format.F64, Shape: []int{64, 4}, Data: cosines(64, 4)}), 640)},
		{name: "link to nothing", path: "gone.npy", make: link("nowhere"), code: check.ExitUsage, says: "gone.npy"},
		{name: "link to itself", path: "loop.npy", make: func(path string) error { return os.Symlink(filepath.Base(path), path) }, code: check.ExitInternal, says: "too many levels of symbolic links"},
		{name: "a file as a folder", path: "f", args: "--basis FILE/q.npy", code: check.ExitUsage, says: "not a directory"},
		{name: "a name of 300 bytes", path: "g", args: "--basis " + strings.Repeat("g", 300), code: check.ExitUsage, says: "file name too long"},
		{name: "baseline 100,000 deep", path: "b.json", data: []byte(strings.Repeat("[", 100_000)), args: "--basis q.npy --baseline FILE", says: "want an object"},
		{name: "baseline with escape sequences", path: "c.json", data: []byte(`{"schema_version":1,"results":[{"check":"\u001b[31m","subject":"x\u202e","verdict":"\u009b"}]}`), args: "--basis q.npy --baseline FILE", code: accepted, says: "is gone"},
	}
}

// padded returns the safetensors file b with white space behind its header, so that the header has n bytes.
func padded(b []byte, n int) []byte {
	old := 8 + int(binary.LittleEndian.Uint64(b))
	out := binary.LittleEndian.AppendUint64(nil, uint64(n))
	out = append(out, b[8:old]...)
	out = append(out, strings.Repeat(" ", 8+n-old)...)
	return append(out, b[old:]...)
}

// columnOf returns column j of a matrix with k columns.
func columnOf(x []float64, k, j int) []float64 {
	var out []float64
	for i := j; i < len(x); i += k {
		out = append(out, x[i])
	}
	return out
}
