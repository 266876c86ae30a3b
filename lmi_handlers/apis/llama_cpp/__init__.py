"""llama.cpp's route for code completion."""
