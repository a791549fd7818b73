-- Compare the predictions with what came.
SELECT progression, predicted_progression FROM new_patients
EVALUATE LABEL progression
USING predicted_progression;
