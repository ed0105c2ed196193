package pickle

import (
	"slices"
	"strings"
)

// Risk is what importing and calling a name can do.
type Risk int

// The risks, from the least.
const (
	Rebuilds Risk = iota // makes tensors and plain containers: what torch.load(weights_only=True) allows
	Imports              // runs code of a library
	Executes             // runs commands, evaluates code, or reaches into files and processes
)

// String says what the risk is.
func (r Risk) String() string {
	return [...]string{"rebuilds tensors", "imports a library's code", "can run commands"}[r]
}

// Risk returns what is known of g. The names that can run commands are a list of those that were found in hostile
// checkpoints and of their siblings, which cannot be complete: [Imports] says that a name is not known to be harmless.
func (g Global) Risk() Risk {
	top, _, _ := strings.Cut(g.Module, ".")
	last := g.Name[strings.LastIndex(g.Name, ".")+1:]
	switch {
	case g.Module == "" && g.Name == "", g.Module == "copyreg":
		return Executes // no telling what it is
	case slices.Contains(dangerousModules, top) && !slices.Contains(harmless, g.String()):
		return Executes
	case slices.Contains(dangerousNames, g.String()), strings.HasPrefix(last, "__") && last != "__main__":
		return Executes
	case slices.Contains(harmless, g.String()), g.rebuilds():
		return Rebuilds
	}
	return Imports
}

// rebuilds reports whether g is a class of tensors or storages, or a type of elements, or a scheme of quantisation.
func (g Global) rebuilds() bool {
	switch g.Module {
	case "torch", "torch.cuda", "torch.sparse", "torch.cuda.sparse":
		kind, ok := strings.CutSuffix(g.Name, "Storage")
		if !ok {
			kind, ok = strings.CutSuffix(g.Name, "Tensor")
		}
		if ok {
			return slices.Contains(classes, kind)
		}
		return g.Module == "torch" && slices.Contains(elements, g.Name)
	case "torch.storage":
		return g.Name == "UntypedStorage" || g.Name == "TypedStorage"
	}
	return false
}

// classes are the first parts of the names of classes of tensors and storages.
var classes = []string{"", "BFloat16", "Bool", "Byte", "Char", "ComplexDouble", "ComplexFloat", "Double", "Float", "Half", "Int", "Long", "Short", "QInt32", "QInt8", "QUInt2x4", "QUInt4x2", "QUInt8"}

// elements are the types of elements and the schemes of quantisation.
var elements = strings.Fields(`bool bfloat16 bcomplex32 complex32 complex64 complex128 bits8 bits16 bits1x8 bits2x4 bits4x2
	float16 float32 float64 float4_e2m1fn_x2 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu
	int1 int2 int3 int4 int5 int6 int7 int8 int16 int32 int64 uint1 uint2 uint3 uint4 uint5 uint6 uint7 uint8 uint16 uint32 uint64
	qint8 qint32 quint8 quint2x4 quint4x2 per_channel_affine per_channel_affine_float_qparams per_channel_symmetric per_tensor_affine per_tensor_symmetric`)

// dangerousModules have no name that a checkpoint needs.
var dangerousModules = []string{
	"os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "pty", "platform", "runpy", "importlib", "imp", "code", "codeop",
	"ctypes", "webbrowser", "asyncio", "multiprocessing", "threading", "signal", "tempfile", "urllib", "http", "ftplib", "smtplib",
	"requests", "pickle", "_pickle", "dill", "cloudpickle", "marshal", "types", "inspect", "timeit", "trace", "pdb", "bdb", "profile",
	"cProfile", "commands", "popen2", "pip", "ensurepip", "venv", "builtins", "__builtin__", "nntplib", "telnetlib", "operator", "_operator", "doctest",
}

// dangerousNames lie in modules that have harmless names as well.
var dangerousNames = []string{
	"torch.load", "torch.hub.load", "torch.utils.data.datapipes.utils.decoder.basichandlers", "torch.jit.load",
	"torch._inductor.codecache.compile_file", "torch.serialization.load", "numpy.load", "numpy.testing._private.utils.runstring",
	"numpy.f2py.diagnose.run_command", "functools.partial", "functools.reduce", "bdb.Bdb.run", "linecache.getline", "pydoc.pipepager", "pathlib.Path", "logging.config._resolve", "collections.namedtuple",
}

// harmless is what torch.load allows with weights_only=True beside the classes and types of tensors
// (torch/_weights_only_unpickler.py, torch 2.15.0), by the names of Python 2 as well, and frozenset.
var harmless = []string{
	"collections.OrderedDict", "collections.Counter", "_codecs.encode",
	"builtins.bytearray", "builtins.set", "builtins.frozenset", "builtins.complex",
	"__builtin__.bytearray", "__builtin__.set", "__builtin__.frozenset", "__builtin__.complex",
	"torch.Size", "torch.device", "torch.nn.parameter.Parameter", "torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2",
	"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2",
	"torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_qtensor", "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_meta_tensor_no_storage",
	"torch._utils._rebuild_wrapper_subclass", "torch._utils._rebuild_device_tensor_from_cpu_tensor", "torch._utils._rebuild_device_tensor_from_numpy",
}
