"""What a student's file is worth: `manyhands check --course FOLDER`.

`grade_student_file` runs each test of the folder in an `exercise_process` or several, and counts
the `points_per_test`.
"""
