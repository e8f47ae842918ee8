#include <nanobind/nanobind.h>
namespace nb = nanobind;
NB_MODULE(_core, m) { m.def("isas", [] { nb::list l; l.append("portable"); return l; }); }
