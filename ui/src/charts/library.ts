// The chart library, in a chunk of its own.
import Plot from "uplot";
export default Plot;
