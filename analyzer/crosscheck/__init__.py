"""Our overlap and breakdown beside those of HolisticTraceAnalysis, each difference taken apart into its causes."""
