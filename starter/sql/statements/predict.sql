-- Add a column with the predictions, and look at some of them.
SELECT * FROM new_patients
PREDICT new_patients.predicted_progression
USING progression;

SELECT age, bmi, bp, progression, predicted_progression FROM new_patients LIMIT 5;
