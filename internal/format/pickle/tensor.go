package pickle

import (
	"fmt"
	"math/bits"
	"strconv"
)

// Tensor is a tensor of a checkpoint.
type Tensor struct {
	Name      string  // keys that lead to it, joined by full stops
	DType     string  // as torch names it: "float32", "bfloat16"; "" if the program does not say
	Shape     []int64 //
	Strides   []int64 // in elements
	Offset    int64   // in the storage, in elements
	Storage   string  // key of the storage; "" for a tensor on the device meta
	Parameter bool    // torch.nn.Parameter
}

// Len returns the number of elements of t, or -1 if it does not fit 63 bits.
func (t *Tensor) Len() int64 { return product(t.Shape) }

// Storage is the memory that one or more tensors look into.
type Storage struct {
	Key      string
	DType    string // "uint8" for a storage that has no type
	Device   string // "cpu", "cuda:0"
	Elements int64
	Bytes    int64 // Elements times their size
	Stored   int64 // bytes of the member of the archive, -1 if it is missing; 0 where the file is no archive
	At       int64 // byte of the file where the elements begin, little-endian; 0 where they cannot be read as they lie there
}

// Number is a whole number under the keys of dicts: the step of an optimiser, the last epoch of a schedule.
type Number struct {
	Name  string // keys that lead to it, joined by full stops
	Value int64
}

// Real is a number with a fraction in dicts and lists, less than 2⁻⁴⁸ of it away: a learning rate. It may be NaN or infinite.
type Real struct {
	Name  string // keys that lead to it, joined by full stops; the index for members of lists and tuples
	Value float64
}

// maxNumbers is the most numbers that are listed: the state of a data loader may be a list of millions.
const maxNumbers = 4096

// maxRank is the most dimensions of a tensor in torch.
const maxRank = 64

// storageTypes are the classes of storages: the type of their elements and its size in bytes.
var storageTypes = map[string]struct {
	dtype string
	size  int64
}{
	"DoubleStorage": {"float64", 8}, "FloatStorage": {"float32", 4}, "HalfStorage": {"float16", 2}, "BFloat16Storage": {"bfloat16", 2},
	"LongStorage": {"int64", 8}, "IntStorage": {"int32", 4}, "ShortStorage": {"int16", 2}, "CharStorage": {"int8", 1},
	"ByteStorage": {"uint8", 1}, "BoolStorage": {"bool", 1}, "ComplexFloatStorage": {"complex64", 8}, "ComplexDoubleStorage": {"complex128", 16},
	"QInt8Storage": {"qint8", 1}, "QUInt8Storage": {"quint8", 1}, "QInt32Storage": {"qint32", 4}, "UntypedStorage": {"uint8", 1},
}

// itemSizes are the sizes in bytes of the types that have no storage class.
var itemSizes = map[string]int64{"uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}

// persistent follows BINPERSID: torch writes ("storage", class, key, device, number of elements).
func (m *machine) persistent() error {
	v := m.pop()
	if m.bad != "" {
		return m.stop(nil)
	}
	m.push(m.node(node{kind: persistentNode, a: v}))
	id := m.elements(v)
	if len(id) < 5 || !id[2].textual() || id[1].kind() != global || id[4].kind() != integer {
		return nil
	}
	key, err := m.read(id[2])
	if err != nil {
		return err
	}
	class, known := storageTypes[m.out.Globals[id[1].index()].Name]
	n := id[4].int()
	if !known || n < 0 {
		m.out.problem("storage %q: %d elements of %s", key, n, m.out.Globals[id[1].index()])
		return nil
	}
	hi, size := bits.Mul64(uint64(n), uint64(class.size))
	if hi != 0 || size>>62 != 0 {
		m.out.problem("storage %q: %d elements of %s", key, n, class.dtype)
		return nil
	}
	st := Storage{Key: key, DType: class.dtype, Elements: n, Bytes: int64(size)}
	if id[3].textual() {
		if st.Device, err = m.read(id[3]); err != nil {
			return err
		}
	}
	if i, there := m.storages[key]; there {
		if old := m.out.Storages[i]; old.Elements != n || old.DType != st.DType {
			m.out.problem("storage %q is declared with %d elements of %s, and with %d of %s", key, old.Elements, old.DType, n, st.DType)
		}
		return nil
	}
	if m.room(base/2+len(m.storages), 512, "storages") {
		m.storages[key] = len(m.out.Storages)
		m.out.Storages = add(m.out.Storages, st)
	}
	return nil
}

// walk lists the tensors that root leads to, in the order of the file.
func (m *machine) walk(root value) {
	w := &walker{machine: m, seen: make([]bool, m.nodes.n)}
	w.visit(root, 0)
	m.nodes.n, m.pairs.n, m.children.n = 0, 0, 0
}

type walker struct {
	*machine
	seen []bool // containers
	path []byte // names that lead to what is visited, joined by full stops
}

func (w *walker) visit(v value, depth int) {
	if v.kind() != object {
		return
	}
	n := w.nodes.at(v.index())
	if n.kind == callNode {
		if w.budget < 0 || !w.room(base/2+len(w.out.Tensors), 512, "tensors") {
			w.full("tensors", len(w.out.Tensors))
			return
		}
		if t, ok := w.tensor(v, 0); ok {
			w.list(t)
			return
		}
	}
	if w.seen[v.index()] {
		return
	}
	w.seen[v.index()] = true
	if depth == maxDepth {
		w.out.note("containers deeper than %d are not followed", maxDepth)
		return
	}
	if n.kind == tupleNode {
		for i, c := range w.elements(v) {
			if c.kind() == object || c.kind() == real {
				w.under(integral(int64(i)), c, depth)
			}
		}
		return
	}
	for i := n.first; i >= 0; i = w.pairs.at(int(i)).next {
		p := w.pairs.at(int(i))
		w.under(p.key, p.val, depth)
	}
}

// under visits v under the name that key is.
func (w *walker) under(key, v value, depth int) {
	start := len(w.path)
	if key.textual() || key.kind() == integer {
		if start > 0 {
			w.path = append(w.path, '.')
		}
		if key.textual() {
			text, err := w.read(key)
			if err != nil {
				w.out.note("%v", err)
				w.path = w.path[:start]
				return
			}
			w.path = append(w.path, text...)
		} else {
			w.path = strconv.AppendInt(w.path, key.int(), 10)
		}
	}
	if len(w.path) > maxText {
		w.out.note("keys that lead deeper than %d bytes of names are not followed", maxText)
	} else {
		if v.kind() == integer && len(w.out.Numbers) < maxNumbers && w.budget > int64(len(w.path)) {
			w.budget -= int64(len(w.path))
			w.out.Numbers = append(w.out.Numbers, Number{string(w.path), v.int()})
		}
		if v.kind() == real && len(w.out.Reals) < maxNumbers && w.budget > int64(len(w.path)) {
			w.budget -= int64(len(w.path))
			w.out.Reals = append(w.out.Reals, Real{string(w.path), v.float()})
		}
		w.visit(v, depth+1)
	}
	w.path = w.path[:start]
}

func (w *walker) list(t Tensor) {
	w.budget -= int64(len(w.path) + 8*len(t.Shape) + 8*len(t.Strides))
	t.Name = string(w.path)
	if t.Storage != "" {
		if i, ok := w.storages[t.Storage]; ok {
			w.fits(&t, &w.out.Storages[i])
		}
	}
	w.out.Tensors = add(w.out.Tensors, t)
}

// fits checks that every element of t lies in s.
func (w *walker) fits(t *Tensor, s *Storage) {
	if len(t.Shape) != len(t.Strides) {
		w.out.problem("tensor %q: shape %v and strides %v", t.Name, t.Shape, t.Strides)
		return
	}
	last := uint64(t.Offset)
	n := t.Len()
	for i, size := range t.Shape {
		if size < 0 || t.Strides[i] < 0 || t.Offset < 0 || n < 0 {
			w.out.problem("tensor %q: shape %v, strides %v, offset %d", t.Name, t.Shape, t.Strides, t.Offset)
			return
		}
		if n == 0 {
			return // no element
		}
		hi, lo := bits.Mul64(uint64(size-1), uint64(t.Strides[i]))
		sum, carry := bits.Add64(last, lo, 0)
		if last = sum; hi != 0 || carry != 0 {
			last = 1 << 63
			break
		}
	}
	elements := s.Elements
	if t.DType != s.DType { // a storage without a type counts bytes
		elements = s.Bytes
		if size := itemSize(t.DType); size > 0 {
			elements /= size
		}
	}
	if t.Offset < 0 || last >= uint64(elements) {
		w.out.problem("tensor %q: shape %v, strides %v and offset %d reach beyond the %d elements of storage %q", t.Name, t.Shape, t.Strides, t.Offset, elements, s.Key)
	}
}

func itemSize(dtype string) int64 {
	for _, c := range storageTypes {
		if c.dtype == dtype {
			return c.size
		}
	}
	return itemSizes[dtype]
}

// tensor reads a call that rebuilds a tensor (torch/_utils.py, torch 2.15.0).
func (w *walker) tensor(v value, depth int) (t Tensor, ok bool) {
	if v.kind() != object || depth == 4 || w.nodes.at(v.index()).kind != callNode {
		return t, false
	}
	n := w.nodes.at(v.index())
	if n.a.kind() != global {
		return t, false
	}
	args := w.elements(n.b)
	switch w.out.Globals[n.a.index()].String() {
	case "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state":
		if len(args) > 0 {
			t, ok = w.tensor(args[0], depth+1)
			t.Parameter = true
		}
		return t, ok
	case "torch._tensor._rebuild_from_type_v2": // function, class, arguments, state
		if len(args) > 2 && args[0].kind() == global {
			return w.rebuild(w.out.Globals[args[0].index()].String(), w.elements(args[2]))
		}
	default:
		return w.rebuild(w.out.Globals[n.a.index()].String(), args)
	}
	return t, false
}

// rebuild reads the arguments of a function that makes a plain tensor.
func (w *walker) rebuild(function string, args []value) (t Tensor, ok bool) {
	switch function {
	case "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3":
		if len(args) < 4 || args[0].kind() != object || w.nodes.at(args[0].index()).kind != persistentNode || args[1].kind() != integer {
			return t, false
		}
		id := w.elements(w.nodes.at(args[0].index()).a)
		if len(id) < 5 || !id[2].textual() || id[1].kind() != global {
			return t, false
		}
		var err error
		if t.Storage, err = w.read(id[2]); err != nil {
			w.out.note("%v", err)
			return t, false
		}
		t.Offset = args[1].int()
		t.DType = storageTypes[w.out.Globals[id[1].index()].Name].dtype
		if function == "torch._utils._rebuild_tensor_v3" && len(args) > 6 {
			t.DType = w.dtype(args[6])
		}
		t.Shape, ok = w.sizes(args[2])
		if ok {
			t.Strides, ok = w.sizes(args[3])
		}
	case "torch._utils._rebuild_meta_tensor_no_storage": // type, shape, strides, requires_grad
		if len(args) < 3 {
			return t, false
		}
		t.DType = w.dtype(args[0])
		t.Shape, ok = w.sizes(args[1])
		if ok {
			t.Strides, ok = w.sizes(args[2])
		}
	}
	return t, ok
}

func (w *walker) dtype(v value) string {
	if v.kind() == global && w.out.Globals[v.index()].Module == "torch" {
		return w.out.Globals[v.index()].Name
	}
	return ""
}

// sizes reads a tuple of numbers, or a torch.Size of one.
func (w *walker) sizes(v value) ([]int64, bool) {
	if v.kind() != object {
		return nil, false
	}
	if n := w.nodes.at(v.index()); n.kind == callNode { // torch.Size((2, 3))
		args := w.elements(n.b)
		if len(args) != 1 {
			return nil, false
		}
		v = args[0]
	}
	if v.kind() != object || w.nodes.at(v.index()).kind != tupleNode {
		return nil, false
	}
	items := w.elements(v)
	if len(items) > maxRank {
		return nil, false
	}
	sizes := make([]int64, len(items))
	for i, x := range items {
		if x.kind() != integer {
			return nil, false
		}
		sizes[i] = x.int()
	}
	return sizes, true
}

// product returns the number of elements of a shape, or -1 if it does not fit 63 bits.
func product(shape []int64) int64 {
	n := uint64(1)
	over := false
	for _, s := range shape {
		if s == 0 {
			return 0
		}
		if s < 0 {
			return -1
		}
		hi, lo := bits.Mul64(n, uint64(s))
		n, over = lo, over || hi != 0 || lo>>63 != 0
	}
	if over {
		return -1
	}
	return int64(n)
}

// String describes t.
func (t *Tensor) String() string { return fmt.Sprintf("%s %s%v", t.Name, t.DType, t.Shape) }
